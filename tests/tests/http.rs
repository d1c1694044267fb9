//! HTTP from a guest through the daemon: what goes out, over which connections, and what does not go out.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use std::collections::BTreeSet;
use std::time::Duration;

use returnerd_tests::certificates::Authority;
use returnerd_tests::client::Client;
use returnerd_tests::daemon::{Daemon, DaemonBuilder};
use returnerd_tests::env;
use returnerd_tests::wait::wait_for_value;
use returnerd_tests::web::{Reply, Tls, TunnelProxy, WebServer};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(60);

fn start(builder: DaemonBuilder) -> Daemon {
    let mut daemon = builder.prepare();
    daemon.drop_plugin_file("web", &env::guest("web"));
    daemon.start();
    daemon
}

/// A master whose Salt configuration has these options of the plugin.
fn client(daemon: &Daemon, options: &Value) -> Client {
    let options = options.as_object().unwrap();
    daemon
        .client()
        .with_opts(options.iter().map(|(name, value)| (format!("web.{name}"), value.clone())).collect())
}

fn jid(number: usize) -> String {
    format!("20261202150000{number:06}")
}

fn hand_over(client: &mut Client, number: usize) {
    let ret = json!({"jid": jid(number), "id": "m1", "fun": "test.ping", "return": true, "success": true});
    client.return_("web", ret).done();
}

fn jids(server: &WebServer) -> BTreeSet<String> {
    server.seen().iter().filter_map(|seen| seen.header("x-jid").map(str::to_owned)).collect()
}

/// Waits until the server has these jobs.
fn delivered(daemon: &Daemon, server: &WebServer, numbers: std::ops::Range<usize>) {
    let wanted: BTreeSet<String> = numbers.map(jid).collect();
    wait_for_value(
        "the deliveries",
        LIMIT,
        || daemon.tail(),
        || jids(server).is_superset(&wanted).then_some(()),
    );
}

/// Waits until `status` says this of the sink whose options hold `marker`, and gives it.
fn sink_that(daemon: &Daemon, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
    wait_for_value(
        what,
        LIMIT,
        || daemon.tail(),
        || {
            let status = daemon.cli(&["status", "--json"]).json_whatever_the_code();
            status["sinks"].as_array()?.iter().find(|sink| condition(sink)).cloned()
        },
    )
}

fn is_refused(sink: &Value, text: &str) -> bool {
    sink["refused"].as_str().is_some_and(|refused| refused.contains(text))
}

fn has_error(sink: &Value, text: &str) -> bool {
    sink["last_error"].as_str().is_some_and(|error| error.contains(text))
}

fn plain(port: u16) -> String {
    format!("http://127.0.0.1:{port}/in?x=1")
}

#[test]
fn returns_go_out_over_one_connection_that_outlives_the_instance() {
    let server = WebServer::start(|_| Reply::default());
    // Instances are renewed all the time.
    let daemon = start(Daemon::builder().tables("[plugin.web]\nrenew_after = \"1ms\"\n"));
    let mut client = client(&daemon, &json!({"url": plain(server.port())}));
    for number in 0..20 {
        hand_over(&mut client, number);
        delivered(&daemon, &server, 0..number + 1);
    }
    assert_eq!(server.connections(), 1);
    let seen = &server.seen()[0];
    assert_eq!((seen.method.as_str(), seen.target.as_str()), ("POST", "/in?x=1"));
    let document: Value = serde_json::from_slice(&seen.body).unwrap();
    assert_eq!((&document["jid"], &document["fun"]), (&json!(jid(0)), &json!("test.ping")));
    assert!(!daemon.log().contains("?x=1"), "a query may hold a token");
}

#[test]
fn https_uses_the_plugins_authority_its_client_certificate_and_http2() {
    let authority = Authority::new();
    let identity = authority.sign(&["localhost"]);
    let tls = Tls { identity, clients: Some(authority.pem().to_owned()), http2: true };
    let server = WebServer::start_tls(&tls, |_| Reply::default());
    let builder = Daemon::builder();
    let client_identity = authority.sign(&["client"]);
    let path = |name: &str, text: &str| {
        let path = builder.root().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (ca, cert, key) = (
        path("ca.pem", authority.pem()),
        path("client.pem", &client_identity.cert),
        path("client.key", &client_identity.key),
    );
    let table = format!(
        "[plugin.web.http]\nca_file = {ca:?}\nweb_roots = false\nclient_cert = {cert:?}\nclient_key = {key:?}\n"
    );
    let daemon = start(builder.tables(&table));
    let mut client = client(&daemon, &json!({"url": format!("https://localhost:{}/", server.port())}));
    for number in 0..10 {
        hand_over(&mut client, number);
    }
    delivered(&daemon, &server, 0..10);
    assert_eq!(server.seen()[0].version, "HTTP/2.0");
    assert_eq!(server.connections(), 1);
}

#[test]
fn a_server_of_another_authority_or_name_gets_nothing_and_the_return_waits() {
    let authority = Authority::new();
    let tls = |names: &[&str]| Tls { identity: authority.sign(names), clients: None, http2: true };
    let server = WebServer::start_tls(&tls(&["other.example"]), |_| Reply::default());
    let daemon = start(Daemon::builder());
    let mut client = client(&daemon, &json!({"url": format!("https://localhost:{}/", server.port())}));
    hand_over(&mut client, 0);
    let sink = sink_that(&daemon, "the fault", |sink| has_error(sink, "certificate is not trusted"));
    assert_eq!(sink["waiting"], 1);
    assert!(daemon.log().contains("UnknownIssuer"), "{}", daemon.tail());
    assert!(server.seen().is_empty());
}

#[test]
fn a_slow_server_delays_no_other_sink_and_its_returns_are_tried_again() {
    let slow = WebServer::start(|_| Reply { after: Duration::from_secs(600), ..Reply::default() });
    let good = WebServer::start(|_| Reply::default());
    let daemon = start(Daemon::builder());
    let mut to_slow = client(&daemon, &json!({"url": plain(slow.port()), "answer_ms": 300}));
    let mut to_good = client(&daemon, &json!({"url": plain(good.port())}));
    hand_over(&mut to_slow, 0);
    for number in 0..50 {
        hand_over(&mut to_good, number);
    }
    delivered(&daemon, &good, 0..50);
    let sink = sink_that(&daemon, "the fault", |sink| has_error(sink, "no answer within the time limit"));
    assert_eq!(sink["waiting"], 1);
    wait_for_value("another try", LIMIT, || daemon.tail(), || (slow.seen().len() > 1).then_some(()));
}

#[test]
fn a_busy_server_is_asked_again_when_it_says() {
    let server = WebServer::start({
        let asked = std::sync::atomic::AtomicUsize::new(0);
        move |_| match asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            0 => Reply::status(429).header("retry-after", 1),
            _ => Reply::default(),
        }
    });
    let daemon = start(Daemon::builder());
    hand_over(&mut client(&daemon, &json!({"url": plain(server.port())})), 0);
    wait_for_value("the second try", LIMIT, || daemon.tail(), || (server.seen().len() == 2).then_some(()));
    sink_that(&daemon, "the delivery", |sink| sink["waiting"] == 0);
}

/// Hands a return over whose request must not reach `forbidden`, and waits for the refusal in `status` and log.
fn refused(daemon: &Daemon, options: &Value, forbidden: &WebServer, text: &str) {
    hand_over(&mut client(daemon, options), 0);
    let sink = sink_that(daemon, "the refusal", |sink| {
        is_refused(sink, text) && has_error(sink, "did not allow the request")
    });
    assert_eq!(sink["waiting"], 1);
    assert!(daemon.log().contains("refused: the plugin wants"), "{}", daemon.tail());
    assert_eq!(forbidden.connections(), 0);
}

#[test]
fn another_host_port_or_scheme_is_refused() {
    let server = WebServer::start(|_| Reply::default());
    let daemon = start(Daemon::builder());
    let port = server.port();
    for instead in [
        format!("http://127.0.0.1:{port}/"),
        format!("http://localhost:{port}/"),
        format!("https://127.0.0.1:{port}/"),
    ] {
        let origin = instead.trim_end_matches('/');
        let options = json!({"url": "http://127.0.0.1:1/", "instead": instead});
        refused(&daemon, &options, &server, &format!("allow = [\"{origin}\"]"));
    }
}

#[test]
fn a_redirect_to_another_server_is_refused() {
    let secret = WebServer::start(|_| Reply::default());
    let to = plain(secret.port());
    let server = WebServer::start(move |_| Reply::status(307).header("location", &to));
    let daemon = start(Daemon::builder());
    let options = json!({"url": plain(server.port()), "follow": true});
    let allow = format!("allow = [\"http://127.0.0.1:{}\"]", secret.port());
    refused(&daemon, &options, &secret, &allow);
    assert!(!server.seen().is_empty());
}

#[test]
fn a_host_header_of_another_server_is_refused() {
    let server = WebServer::start(|_| Reply::default());
    let daemon = start(Daemon::builder());
    let options = json!({"url": plain(server.port()), "host": "internal.example"});
    refused(&daemon, &options, &server, "`Host` header");
}

#[test]
fn what_no_option_names_is_reached_by_a_line_of_allow() {
    let server = WebServer::start(|_| Reply::default());
    let port = server.port();
    let line = format!("http://127.0.0.1:{port}");
    let daemon = start(Daemon::builder().allow("web", &[&line]));
    let options = json!({"url": "http://127.0.0.1:1/", "instead": plain(port)});
    hand_over(&mut client(&daemon, &options), 0);
    delivered(&daemon, &server, 0..1);
}

#[test]
fn a_response_that_is_too_large_is_not_taken() {
    let server = WebServer::start(|_| Reply { body: vec![b'x'; 4096], ..Reply::default() });
    let daemon = start(Daemon::builder().tables("[plugin.web.http]\nmax_response = \"1 KiB\"\n"));
    hand_over(&mut client(&daemon, &json!({"url": plain(server.port())})), 0);
    sink_that(&daemon, "the fault", |sink| has_error(sink, "response is larger"));
}

#[test]
fn a_configured_proxy_is_used() {
    let authority = Authority::new();
    let tls = Tls { identity: authority.sign(&["secure.example"]), clients: None, http2: true };
    let server = WebServer::start_tls(&tls, |_| Reply::default());
    let proxy = TunnelProxy::start(server.port());
    let builder = Daemon::builder();
    let ca = builder.root().join("ca.pem");
    std::fs::write(&ca, authority.pem()).unwrap();
    let table =
        format!("[plugin.web.http]\nca_file = {ca:?}\nproxy = \"http://127.0.0.1:{}\"\n", proxy.port());
    let daemon = start(builder.tables(&table));
    let mut client = client(&daemon, &json!({"url": "https://secure.example/"}));
    for number in 0..5 {
        hand_over(&mut client, number);
    }
    delivered(&daemon, &server, 0..5);
    let heads = proxy.heads();
    assert_eq!(heads.len(), 1);
    assert!(heads[0].starts_with("CONNECT secure.example:443 HTTP/1.1\r\n"), "{}", heads[0]);
}

#[test]
fn the_proxy_of_the_environment_is_used_only_where_it_is_asked_for() {
    let (proxy, direct) = (WebServer::start(|_| Reply::default()), WebServer::start(|_| Reply::default()));
    let environment = |builder: DaemonBuilder| {
        let uri = format!("http://127.0.0.1:{}", proxy.port());
        builder.variable("HTTP_PROXY", &uri).variable("NO_PROXY", "127.0.0.1")
    };
    let with = environment(Daemon::builder()).tables("[plugin.web.http]\nproxy = \"environment\"\n");
    let daemon = start(with);
    hand_over(&mut client(&daemon, &json!({"url": "http://plain.example/x"})), 0);
    delivered(&daemon, &proxy, 0..1);
    assert_eq!(proxy.seen()[0].target, "http://plain.example/x");
    hand_over(&mut client(&daemon, &json!({"url": plain(direct.port())})), 1);
    delivered(&daemon, &direct, 1..2);
    assert_eq!(proxy.seen().len(), 1);

    let daemon = start(environment(Daemon::builder()));
    hand_over(&mut client(&daemon, &json!({"url": "http://plain.invalid/x"})), 2);
    sink_that(&daemon, "the fault", |sink| has_error(sink, "name cannot be looked up"));
    assert_eq!(proxy.seen().len(), 1);
}

#[test]
fn a_changed_setting_makes_a_new_client() {
    let authority = Authority::new();
    let tls = Tls { identity: authority.sign(&["localhost"]), clients: None, http2: true };
    let server = WebServer::start_tls(&tls, |_| Reply::default());
    let builder = Daemon::builder();
    let ca = builder.root().join("ca.pem");
    std::fs::write(&ca, Authority::new().pem()).unwrap();
    let daemon =
        start(builder.tables(&format!("[plugin.web]\nrenew_after = \"1ms\"\nhttp.ca_file = {ca:?}\n")));
    let mut client = client(&daemon, &json!({"url": format!("https://localhost:{}/", server.port())}));
    hand_over(&mut client, 0);
    sink_that(&daemon, "the fault", |sink| has_error(sink, "certificate is not trusted"));
    std::fs::write(&ca, authority.pem()).unwrap();
    delivered(&daemon, &server, 0..1);
}

#[test]
fn settings_that_do_not_work_are_found_by_check_and_named_in_status() {
    let server = WebServer::start(|_| Reply::default());
    let daemon = start(Daemon::builder().tables("[plugin.web.http]\nca_file = \"/does/not/exist.pem\"\n"));
    let check = daemon.cli(&["check", "--quick", "--json"]).json_whatever_the_code();
    assert!(check["faults"].to_string().contains("`/does/not/exist.pem`"), "{check}");
    hand_over(&mut client(&daemon, &json!({"url": plain(server.port())})), 0);
    sink_that(&daemon, "the fault", |sink| has_error(sink, "/does/not/exist.pem"));
}
