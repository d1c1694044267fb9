//! Requests inside the sandbox: WASI HTTP, waiting where there is something to wait for.

use std::time::Duration;

use wasip2::http::outgoing_handler::handle;
use wasip2::http::types::{
    ErrorCode, Fields, IncomingBody, IncomingResponse, Method, OutgoingBody, OutgoingRequest, RequestOptions,
    Scheme, http_error_code,
};
use wasip2::io::streams::{OutputStream, StreamError};

use super::url::Url;
use super::{Request, Response};
use crate::{Error, Result};

/// Bytes that are read at once.
const CHUNK: u64 = 64 << 10;

pub(super) fn send(request: &Request, url: &Url) -> Result<Response> {
    let headers = Fields::from_list(&request.headers)
        .map_err(|error| Error::fatal(format!("a header cannot be sent ({error:?})")))?;
    let outgoing = OutgoingRequest::new(headers);
    let scheme = if url.tls { Scheme::Https } else { Scheme::Http };
    let set = outgoing
        .set_method(&method(&request.method))
        .and_then(|()| outgoing.set_scheme(Some(&scheme)))
        .and_then(|()| outgoing.set_authority(Some(&url.authority)))
        .and_then(|()| outgoing.set_path_with_query(Some(&url.path_and_query)));
    set.map_err(|()| Error::fatal("the method or the URL is not valid"))?;
    let options = RequestOptions::new();
    let times = options
        .set_connect_timeout(request.connect.map(nanoseconds))
        .and_then(|()| options.set_first_byte_timeout(request.answer.map(nanoseconds)))
        .and_then(|()| options.set_between_bytes_timeout(request.answer.map(nanoseconds)));
    times.map_err(|()| Error::fatal("the host takes no time limits"))?;
    let body = if request.body.is_empty() { None } else { outgoing.body().ok() };

    let future = handle(outgoing, Some(options)).map_err(fault)?;
    if let Some(body) = body {
        // Should the server answer before it has read everything, or be away, the response tells.
        if write(&body, &request.body) {
            let _ = OutgoingBody::finish(body, None);
        }
    }
    future.subscribe().block();
    match future.get() {
        Some(Ok(Ok(response))) => read(&response),
        Some(Ok(Err(code))) => Err(fault(code)),
        Some(Err(())) | None => Err(Error::retry("the host gave no response")),
    }
}

fn method(name: &str) -> Method {
    match name {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        "POST" => Method::Post,
        "PUT" => Method::Put,
        "DELETE" => Method::Delete,
        "OPTIONS" => Method::Options,
        "PATCH" => Method::Patch,
        other => Method::Other(other.to_owned()),
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Whether all was written.
fn write(body: &OutgoingBody, bytes: &[u8]) -> bool {
    let Ok(stream) = body.write() else { return false };
    write_all(&stream, bytes).is_ok()
}

fn write_all(stream: &OutputStream, mut bytes: &[u8]) -> Result<(), StreamError> {
    while !bytes.is_empty() {
        let room = usize::try_from(stream.check_write()?).unwrap_or(usize::MAX);
        if room == 0 {
            stream.subscribe().block();
            continue;
        }
        let (now, later) = bytes.split_at(room.min(bytes.len()));
        stream.write(now)?;
        bytes = later;
    }
    Ok(())
}

fn read(response: &IncomingResponse) -> Result<Response> {
    let status = response.status();
    let headers = response.headers().entries();
    let mut body = Vec::new();
    if let Ok(incoming) = response.consume() {
        read_body(&incoming, &mut body)?;
    }
    Ok(Response { status, headers, body })
}

fn read_body(incoming: &IncomingBody, into: &mut Vec<u8>) -> Result<()> {
    let Ok(stream) = incoming.stream() else { return Ok(()) };
    loop {
        match stream.blocking_read(CHUNK) {
            Ok(part) => into.extend_from_slice(&part),
            Err(StreamError::Closed) => return Ok(()),
            Err(StreamError::LastOperationFailed(error)) => {
                return Err(match http_error_code(&error) {
                    Some(code) => fault(code),
                    None => {
                        let text = error.to_debug_string();
                        let text = text.lines().next().unwrap_or_default();
                        Error::retry(format!("the response broke off: {text}"))
                    }
                });
            }
        }
    }
}

fn fault(code: ErrorCode) -> Error {
    let text = match &code {
        ErrorCode::HttpRequestDenied => {
            return Error::fatal(
                "the host did not allow the request (HTTP-request-denied); hint: the daemon's log and `returnerd status` say why",
            );
        }
        ErrorCode::HttpRequestUriInvalid | ErrorCode::HttpRequestMethodInvalid => {
            return Error::fatal("the method or the URL is not valid");
        }
        ErrorCode::HttpRequestBodySize(_) => {
            return Error::reject("the request's body is larger than the host sends");
        }
        ErrorCode::DnsError(_) | ErrorCode::DnsTimeout => "the server's name cannot be looked up",
        ErrorCode::ConnectionRefused => "the connection was refused",
        ErrorCode::DestinationUnavailable => "there is no way to the server",
        ErrorCode::ConnectionTimeout => "no connection within the time limit",
        ErrorCode::ConnectionTerminated | ErrorCode::HttpResponseIncomplete => "the connection broke off",
        ErrorCode::HttpResponseTimeout | ErrorCode::ConnectionReadTimeout => {
            "no answer within the time limit"
        }
        ErrorCode::TlsCertificateError => "the server's certificate is not trusted",
        ErrorCode::TlsProtocolError => "TLS failed",
        ErrorCode::TlsAlertReceived(_) => "the server ended TLS; it may want a client certificate",
        ErrorCode::HttpResponseBodySize(_) => "the response is larger than the host takes",
        other => return Error::retry(format!("the request failed ({other:?})")),
    };
    Error::retry(text)
}
