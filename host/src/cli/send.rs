//! `send`: a return as JSON, handed over as the shim would.

use std::io::Read;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Map, Value, json};

use super::{CliError, ask, print_json, print_line};
use crate::config::Config;
use crate::salt::config_files::SaltConfig;
use crate::salt::frame::{Envelope, Op, Request, Role};
use crate::salt::json;
use crate::salt::options::own;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The file with the return, a JSON object with at least `jid`, `id`, `fun` and `return`; `-` reads stdin.
    #[arg(default_value = "-")]
    file: PathBuf,
    /// The returner.
    #[arg(long, short)]
    returner: String,
    /// An option for the returner, over what Salt's configuration says.
    #[arg(long = "option", short, value_name = "NAME=VALUE")]
    options: Vec<String>,
    /// Take the options from Salt's minion configuration, not the master's.
    #[arg(long)]
    minion: bool,
    /// Wait until the return is stored or rejected.
    #[arg(long)]
    wait: bool,
    /// How long `--wait` waits, in seconds.
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    timeout: u64,
}

pub(super) fn run(arguments: &Arguments, config: &Config) -> Result<(), CliError> {
    let text = if arguments.file.as_os_str() == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map_err(CliError::file("read", &arguments.file))?;
        text
    } else {
        std::fs::read_to_string(&arguments.file).map_err(CliError::file("read", &arguments.file))?
    };
    let ret = json::from_json(&text).map_err(|error| {
        CliError::Text(format!("the return is not valid JSON: {}", crate::observe::chain(&error)))
    })?;
    let role = if arguments.minion { Role::Minion } else { Role::Master };
    let salt = SaltConfig::load_if_there(&config.salt.config_dir, role)
        .map_err(|error| CliError::Text(crate::observe::chain(&error)))?;
    let mut envelope = Envelope::new(&arguments.returner, &salt.id(), role);
    envelope.layers = salt.layers(&arguments.returner).into();
    envelope.salt = own::only(&salt.opts).into();
    envelope.ret_kwargs = kwargs(&arguments.options)?;
    let body = Request { envelope, op: Op::Return { ret } }.to_body();
    let answer = ask::ask(config, &body, Duration::from_secs(30))?;
    if !arguments.wait {
        print_line(&format!("accepted for `{}`", answer["sink"].as_str().unwrap_or(&arguments.returner)));
        return Ok(());
    }
    wait(&answer, arguments, config)
}

fn wait(answer: &Value, arguments: &Arguments, config: &Config) -> Result<(), CliError> {
    let deadline = Instant::now() + Duration::from_secs(arguments.timeout);
    loop {
        let verdicts = ask::admin(config, "verdict", json!({ "seqs": answer["seqs"] }))?;
        let verdicts = verdicts.as_array().cloned().unwrap_or_default();
        if let Some(dead) = verdicts.iter().find(|verdict| verdict["state"] == "dead") {
            return Err(CliError::Text(format!("rejected: {}", dead["error"].as_str().unwrap_or("-"))));
        }
        let waiting = verdicts.iter().find(|verdict| verdict["state"] == "waiting");
        match waiting {
            None => {
                print_json(&json!({ "sink": answer["sink"], "verdict": "stored" }));
                return Ok(());
            }
            Some(verdict) if Instant::now() >= deadline => {
                return Err(CliError::Text(format!(
                    "accepted, but not stored after {} s; it is tried again: {}",
                    arguments.timeout,
                    verdict["error"].as_str().unwrap_or("no error so far")
                )));
            }
            Some(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

fn kwargs(options: &[String]) -> Result<Option<Map<String, Value>>, CliError> {
    let mut map = Map::new();
    for option in options {
        let (name, value) = option.split_once('=').ok_or_else(|| {
            CliError::Text(format!("`{option}` is no option; hint: write `--option name=value`"))
        })?;
        map.insert(name.to_owned(), Value::from(value));
    }
    Ok((!map.is_empty()).then_some(map))
}
