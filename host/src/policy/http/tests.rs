//! The whole module against real servers, without a daemon or a guest.

use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use returnerd_tests::certificates::{Authority, Identity};
use returnerd_tests::web::{Reply, Tls, TunnelProxy, WebServer};

use super::connect::Resolve;
use super::rules::Rules;
use super::settings::Settings;
use super::*;
use crate::config;
use crate::plugin::manifest::Wish;
use crate::policy::Policy;

/// What a test is about: a client with these grants and names.
struct Lab {
    hooks: Hooks,
    egress: Egress,
}

impl Lab {
    fn new(grants: &[String], config: config::Http) -> Self {
        Self::with(grants, config, false, &[])
    }

    fn with(grants: &[String], config: config::Http, observe: bool, names: &[(&str, &str)]) -> Self {
        let grants: Vec<Wish> = grants.iter().map(|text| text.parse().unwrap()).collect();
        let rules = Rules::new(Policy { grants, ..Policy::default() }.web());
        let egress = Egress::new("p", Vec::new(), observe);
        let names: HashMap<String, IpAddr> =
            names.iter().map(|(name, ip)| ((*name).to_owned(), ip.parse().unwrap())).collect();
        let resolve: Resolve = Arc::new(move |name| {
            let found = names.get(&name).copied().ok_or(std::io::ErrorKind::NotFound.into());
            Box::pin(async move { found.map(|ip| vec![ip]) })
        });
        let settings = Settings::load("p", &config).unwrap();
        let client = Arc::new(Client::new(settings, rules, &egress, resolve).unwrap());
        Self { hooks: Http::new(&client, &egress).hooks, egress }
    }

    async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<(u16, Bytes), Error> {
        self.send_within(request, None).await
    }

    async fn send_within(
        &mut self,
        request: Request<Full<Bytes>>,
        options: Option<RequestOptions>,
    ) -> Result<(u16, Bytes), Error> {
        let request = request.map(|body| body.map_err(|never| match never {}).boxed_unsync());
        let sending = self.hooks.send_request(request, options, Box::new(std::future::ready(Ok(()))));
        let (response, _) = Pin::from(sending).await?;
        let status = response.status().as_u16();
        Ok((status, response.into_body().collect().await?.to_bytes()))
    }

    fn refused(&self) -> String {
        self.egress.refusals().1.unwrap_or_default()
    }
}

fn post(uri: &str) -> Request<Full<Bytes>> {
    Request::post(uri).body(Full::from("body")).unwrap()
}

fn here(scheme: &str, server: &WebServer) -> String {
    format!("{scheme}://127.0.0.1:{}", server.port())
}

fn trusting(authority: &Authority, dir: &tempfile::TempDir) -> config::Http {
    let file = dir.path().join("ca.pem");
    std::fs::write(&file, authority.pem()).unwrap();
    config::Http { ca_file: Some(file), ..config::Http::default() }
}

fn tls(identity: Identity) -> Tls {
    Tls { identity, clients: None, http2: true }
}

#[tokio::test]
async fn connections_are_kept_and_used_again() {
    let server = WebServer::start(|seen| Reply { body: seen.body.clone(), ..Reply::default() });
    let mut lab = Lab::new(&[here("http", &server)], config::Http::default());
    for _ in 0..20 {
        let answer = lab.send(post(&here("http", &server))).await.unwrap();
        assert_eq!(answer, (200, Bytes::from_static(b"body")));
    }
    assert_eq!((server.seen().len(), server.connections()), (20, 1));
    assert_eq!(server.seen()[0].header("host"), Some(here("", &server).trim_start_matches("://")));
}

#[tokio::test]
async fn http2_is_used_where_it_is_offered_over_one_connection() {
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    for http2 in [true, false] {
        let tls = Tls { http2, ..tls(authority.sign(&["127.0.0.1"])) };
        let server = WebServer::start_tls(&tls, |_| Reply::default());
        let mut lab = Lab::new(&[here("https", &server)], trusting(&authority, &dir));
        for _ in 0..5 {
            lab.send(post(&here("https", &server))).await.unwrap();
        }
        assert_eq!(server.seen()[4].version, if http2 { "HTTP/2.0" } else { "HTTP/1.1" });
        assert_eq!(server.connections(), 1);
    }
}

#[tokio::test]
async fn a_server_must_prove_who_it_is() {
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    let server = WebServer::start_tls(&tls(authority.sign(&["127.0.0.1"])), |_| Reply::default());
    let uri = here("https", &server);
    let config = trusting(&authority, &dir);
    assert!(Lab::new(std::slice::from_ref(&uri), config).send(post(&uri)).await.is_ok());
    // An authority that is not known, also beside one that is.
    for config in [config::Http::default(), trusting(&Authority::new(), &dir)] {
        let error = Lab::new(std::slice::from_ref(&uri), config).send(post(&uri)).await.unwrap_err();
        assert!(matches!(error, Error::TlsCertificateError), "{error}");
    }
    let server = WebServer::start_tls(&tls(authority.sign(&["other.example"])), |_| Reply::default());
    let uri = here("https", &server);
    let config = trusting(&authority, &dir);
    let error = Lab::new(std::slice::from_ref(&uri), config).send(post(&uri)).await.unwrap_err();
    assert!(matches!(error, Error::TlsCertificateError), "{error}");
    assert_eq!(server.seen().len(), 0);
}

#[tokio::test]
async fn a_server_that_wants_a_client_certificate_gets_the_configured_one() {
    let (authority, clients, dir) = (Authority::new(), Authority::new(), tempfile::tempdir().unwrap());
    let identity = authority.sign(&["127.0.0.1"]);
    let tls = Tls { identity, clients: Some(clients.pem().to_owned()), http2: false };
    let server = WebServer::start_tls(&tls, |_| Reply::default());
    let uri = here("https", &server);
    let without = trusting(&authority, &dir);
    let error = Lab::new(std::slice::from_ref(&uri), without.clone()).send(post(&uri)).await.unwrap_err();
    assert!(matches!(error, Error::TlsAlertReceived { .. } | Error::ConnectionTerminated), "{error}");
    let client = clients.sign(&["client"]);
    let both = dir.path().join("client.pem");
    std::fs::write(&both, format!("{}{}", client.cert, client.key)).unwrap();
    let with = config::Http { client_cert: Some(both), ..without };
    assert!(Lab::new(std::slice::from_ref(&uri), with).send(post(&uri)).await.is_ok());
}

#[tokio::test]
async fn what_is_not_granted_is_refused_before_a_connection_is_made() {
    let server = WebServer::start(|_| Reply::default());
    let mut lab = Lab::new(&["http://127.0.0.1:1".to_owned()], config::Http::default());
    let error = lab.send(post(&here("http", &server))).await.unwrap_err();
    assert!(matches!(error, Error::HttpRequestDenied));
    assert!(lab.refused().contains(&format!("allow = [\"{}\"]", here("http", &server))), "{}", lab.refused());
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn a_host_header_of_another_server_is_refused_even_when_that_is_granted() {
    let server = WebServer::start(|_| Reply::default());
    let grants = [here("http", &server), "http://other.example".to_owned()];
    for observe in [false, true] {
        let mut lab = Lab::with(&grants, config::Http::default(), observe, &[]);
        let mut request = post(&here("http", &server));
        request.headers_mut().insert(HOST, "other.example".parse().unwrap());
        assert!(matches!(lab.send(request).await, Err(Error::HttpRequestDenied)));
        assert!(lab.refused().contains("`Host` header"), "{}", lab.refused());
    }
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn a_granted_name_that_leads_to_loopback_leads_nowhere() {
    let server = WebServer::start(|_| Reply::default());
    let uri = format!("http://api.example.com:{}", server.port());
    let names = [("api.example.com", "127.0.0.1")];
    let grants = [uri.clone()];
    let mut lab = Lab::with(&grants, config::Http::default(), false, &names);
    assert!(matches!(lab.send(post(&uri)).await, Err(Error::HttpRequestDenied)));
    assert!(lab.refused().contains(&format!("allow = [\"{}\"]", here("http", &server))), "{}", lab.refused());
    assert_eq!(server.connections(), 0);

    let named = [uri.clone(), here("http", &server)];
    assert!(Lab::with(&named, config::Http::default(), false, &names).send(post(&uri)).await.is_ok());
    let mut lab = Lab::with(&grants, config::Http::default(), true, &names);
    assert!(lab.send(post(&uri)).await.is_ok(), "only observed");
    assert_eq!(lab.egress.refusals().0, 1);
}

#[tokio::test]
async fn redirects_are_left_to_the_plugin() {
    let server = WebServer::start(|_| Reply::status(307).header("location", "http://127.0.0.1:1/"));
    let mut lab = Lab::new(&[here("http", &server)], config::Http::default());
    assert_eq!(lab.send(post(&here("http", &server))).await.unwrap().0, 307);
}

#[tokio::test]
async fn sizes_are_limited() {
    let server = WebServer::start(|seen| match seen.target.as_str() {
        "/headers" => Reply::default().header("x-large", "x".repeat(MAX_HTTP_HEADERS)),
        _ => Reply { body: vec![b'x'; 100], ..Reply::default() },
    });
    let uri = here("http", &server);
    let limited =
        |max_request, max_response| config::Http { max_request, max_response, ..Default::default() };
    let grants = std::slice::from_ref(&uri);
    assert!(Lab::new(grants, limited(4, 100)).send(post(&uri)).await.is_ok());
    let error = Lab::new(grants, limited(4, 99)).send(post(&uri)).await.unwrap_err();
    assert!(matches!(error, Error::HttpResponseBodySize(Some(100))), "{error}");
    let error = Lab::new(grants, limited(3, 100)).send(post(&uri)).await.unwrap_err();
    assert!(matches!(error, Error::HttpRequestBodySize(Some(3))), "{error}");
    let error = Lab::new(grants, limited(9, 9)).send(post(&format!("{uri}/headers"))).await.unwrap_err();
    assert!(matches!(error, Error::HttpResponseHeaderSectionSize(_)), "{error}");
    let mut request = post(&uri);
    request.headers_mut().insert("x-large", "x".repeat(MAX_HTTP_HEADERS).parse().unwrap());
    let error = Lab::new(grants, limited(9, 100)).send(request).await.unwrap_err();
    assert!(matches!(error, Error::HttpRequestHeaderSectionSize(_)), "{error}");
}

#[tokio::test]
async fn a_slow_server_runs_into_the_plugins_time_limit() {
    let server = WebServer::start(|_| Reply { after: Duration::from_secs(60), ..Reply::default() });
    let mut lab = Lab::new(&[here("http", &server)], config::Http::default());
    let options =
        RequestOptions { first_byte_timeout: Some(Duration::from_millis(50)), ..RequestOptions::default() };
    let error = lab.send_within(post(&here("http", &server)), Some(options)).await.unwrap_err();
    assert!(matches!(error, Error::HttpResponseTimeout), "{error}");
}

#[tokio::test]
async fn requests_at_once_are_limited() {
    let server = WebServer::start(|_| Reply { after: Duration::from_secs(60), ..Reply::default() });
    let mut lab = Lab::new(&[here("http", &server)], config::Http::default());
    let mut open = Vec::new();
    let start = |lab: &mut Lab| {
        let request =
            post(&here("http", &server)).map(|body| body.map_err(|never| match never {}).boxed_unsync());
        Pin::from(lab.hooks.send_request(request, None, Box::new(std::future::ready(Ok(())))))
    };
    for _ in 0..MAX_HTTP_REQUESTS {
        open.push(start(&mut lab));
    }
    let more = start(&mut lab).await;
    assert!(matches!(more, Err(Error::ConnectionLimitReached)));
    open.pop();
    let again = tokio::time::timeout(Duration::from_millis(50), start(&mut lab)).await;
    assert!(again.is_err(), "it waits for the server");
}

#[tokio::test]
async fn a_proxy_makes_a_tunnel_for_https_and_gets_the_whole_uri_for_http() {
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    let server = WebServer::start_tls(&tls(authority.sign(&["secure.example"])), |_| Reply::default());
    let tunnel = TunnelProxy::start(server.port());
    let through = |port: u16| config::Http {
        proxy: Some(format!("http://user:pass@127.0.0.1:{port}")),
        ..trusting(&authority, &dir)
    };
    // The name is looked up by the proxy, so the resolver here knows none.
    let mut lab = Lab::new(&["https://secure.example:8443".to_owned()], through(tunnel.port()));
    for _ in 0..3 {
        lab.send(post("https://secure.example:8443/x")).await.unwrap();
    }
    let heads = tunnel.heads();
    assert_eq!(heads.len(), 1, "{heads:?}");
    assert!(heads[0].starts_with("CONNECT secure.example:8443 HTTP/1.1\r\n"), "{}", heads[0]);
    assert!(
        heads[0].to_ascii_lowercase().contains("proxy-authorization: basic dxnlcjpwyxnz"),
        "{}",
        heads[0]
    );
    assert!(server.seen().iter().all(|seen| seen.header("proxy-authorization").is_none()));
    assert!(matches!(lab.send(post("https://other.example/")).await, Err(Error::HttpRequestDenied)));

    let proxy = WebServer::start(|_| Reply::status(202));
    let mut lab = Lab::new(&["http://plain.example".to_owned()], through(proxy.port()));
    assert_eq!(lab.send(post("http://plain.example/x?y")).await.unwrap().0, 202);
    let seen = &proxy.seen()[0];
    assert_eq!(seen.target, "http://plain.example/x?y");
    assert_eq!(seen.header("host"), Some("plain.example"));
    assert_eq!(seen.header("proxy-authorization"), Some("Basic dXNlcjpwYXNz"));
}

#[tokio::test]
async fn a_server_that_is_away_has_a_code_of_its_own() {
    let port = returnerd_tests::proc::free_port();
    let uri = format!("http://127.0.0.1:{port}");
    let mut lab = Lab::with(&[uri.clone(), "http://a.example".into()], config::Http::default(), false, &[]);
    assert!(matches!(lab.send(post(&uri)).await, Err(Error::ConnectionRefused)));
    assert!(matches!(lab.send(post("http://a.example/")).await, Err(Error::DnsError { .. })));
}
