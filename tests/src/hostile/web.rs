//! Cases of the guest `web`: HTTP to where it must not go, and servers that do not play fair.

use std::time::Duration;

use serde_json::{Value, json};

use super::Case;
use super::lab::Lab;
use crate::web::{Reply, WebServer};

/// All cases.
pub fn all() -> Vec<Case> {
    vec![
        Case::new("HTTP to a host that is not granted", |lab| {
            let forbidden = WebServer::start(|_| Reply::default());
            let options = json!({ "web.url": "http://127.0.0.1:1/", "web.instead": url(&forbidden) });
            refused(lab, &options, &forbidden, "allow = ")
        }),
        Case::new("HTTP to a host that is not granted, by redirect", |lab| {
            let forbidden = WebServer::start(|_| Reply::default());
            let to = url(&forbidden);
            let server = WebServer::start(move |_| Reply::status(307).header("location", &to));
            refused(lab, &json!({ "web.url": url(&server), "web.follow": true }), &forbidden, "allow = ")
        }),
        Case::new("HTTP with the Host header of another server", |lab| {
            let server = WebServer::start(|_| Reply::default());
            let options = json!({ "web.url": url(&server), "web.host": "internal.example" });
            refused(lab, &options, &server, "`Host` header")
        }),
        Case::new("HTTP to the metadata address of a cloud", |lab| {
            let forbidden = WebServer::start(|_| Reply::default());
            let options =
                json!({ "web.url": "http://127.0.0.1:2/", "web.instead": "http://169.254.169.254/" });
            refused(lab, &options, &forbidden, "169.254.169.254")
        }),
        Case::new("HTTP server that never answers", |lab| {
            let server = WebServer::start(|_| Reply { after: Duration::from_secs(600), ..Reply::default() });
            failed(lab, &json!({ "web.url": url(&server) }), "within")
        }),
    ]
}

fn url(server: &WebServer) -> String {
    format!("http://127.0.0.1:{}/", server.port())
}

/// A field of the sink with these options.
fn field(lab: &Lab, options: &Value, field: &str) -> String {
    let status = lab.status();
    let is_meant = |sink: &&Value| {
        let has = |name: &str| sink["options"][name] == options[format!("web.{name}")];
        sink["plugin"] == "web" && has("url") && has("instead") && has("host")
    };
    let found = status["sinks"].as_array().into_iter().flatten().find(is_meant);
    found.and_then(|sink| sink[field].as_str()).unwrap_or_default().to_owned()
}

fn hand_over(lab: &Lab, options: &Value) -> Result<(), String> {
    let answer = lab.give("web", options);
    if answer.ok { Ok(()) } else { Err(format!("it was not taken: {}", answer.error)) }
}

fn refused(lab: &Lab, options: &Value, forbidden: &WebServer, word: &'static str) -> Result<String, String> {
    hand_over(lab, options)?;
    let reason = lab.wait_for(&[word], |lab| field(lab, options, "refused"))?;
    if forbidden.seen().is_empty() { Ok(reason) } else { Err("the request arrived".into()) }
}

fn failed(lab: &Lab, options: &Value, word: &'static str) -> Result<String, String> {
    hand_over(lab, options)?;
    lab.wait_for(&[word], |lab| field(lab, options, "last_error"))
}
