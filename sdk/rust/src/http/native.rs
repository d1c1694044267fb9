//! Requests outside the sandbox, for a plugin's own tests: plain HTTP/1.1, a connection for each.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::url::Url;
use super::{Request, Response};
use crate::{Error, Result};

/// The time limits for a request that sets none, as in the sandbox.
const CONNECT: Duration = Duration::from_secs(10);
const ANSWER: Duration = Duration::from_secs(30);

pub(super) async fn send(request: &Request, url: &Url) -> Result<Response> {
    if url.tls {
        return Err(Error::fatal("outside the sandbox only `http://` works"));
    }
    let has_port = url.authority.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
    let address = if has_port { url.authority.clone() } else { format!("{}:80", url.authority) };
    let connecting = TcpStream::connect(address);
    let mut stream = tokio::time::timeout(request.connect.unwrap_or(CONNECT), connecting).await??;
    let mut head =
        format!("{} {} HTTP/1.1\r\nconnection: close\r\n", request.method, url.path_and_query).into_bytes();
    if !request.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        head.extend(format!("host: {}\r\n", url.authority).bytes());
    }
    for (name, value) in &request.headers {
        head.extend([name.as_bytes(), b": ", value, b"\r\n"].concat());
    }
    head.extend(b"\r\n");
    let exchange = async {
        stream.write_all(&head).await?;
        stream.write_all(&request.body).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        io::Result::Ok(answer)
    };
    let answer = tokio::time::timeout(request.answer.unwrap_or(ANSWER), exchange).await??;
    parse(&answer).ok_or_else(|| Error::retry("the server answered with no proper HTTP"))
}

fn parse(answer: &[u8]) -> Option<Response> {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    let (head, body) = (std::str::from_utf8(&answer[..end]).ok()?, &answer[end + 4..]);
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let headers = lines.filter_map(|line| line.split_once(':'));
    let headers: Vec<(String, Vec<u8>)> =
        headers.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().into())).collect();
    let mut response = Response { status, headers, body: Vec::new() };
    let chunked = response.header("transfer-encoding").is_some_and(|value| value.contains("chunked"));
    response.body = match response.header("content-length") {
        _ if chunked => unchunk(body)?,
        Some(length) => body.get(..length.parse().ok()?)?.to_vec(),
        None => body.to_vec(),
    };
    Some(response)
}

fn unchunk(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|window| window == b"\r\n")?;
        let size = std::str::from_utf8(&rest[..end]).ok()?.split(';').next()?.trim();
        let size = usize::from_str_radix(size, 16).ok()?;
        if size == 0 {
            return Some(body);
        }
        rest = rest.get(end + 2..)?;
        body.extend(rest.get(..size)?);
        rest = rest.get(size + 2..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_body_are_read() {
        let plain = parse(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcdef").unwrap();
        assert_eq!((plain.status, plain.body.as_slice()), (200, &b"abc"[..]));
        let chunked =
            b"HTTP/1.1 503 Away\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x\r\nde\r\n0\r\n\r\n";
        assert_eq!(parse(chunked).unwrap().body, b"abcde");
        assert_eq!(parse(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"), None);
        assert_eq!(parse(b"nothing"), None);
    }
}
