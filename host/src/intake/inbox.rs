//! The inbox: frames that the shim left as files while the daemon was away.
//!
//! Invariants: files are taken in the order of their names; a file is removed only when its items are on disk; a file that cannot be
//! read is set aside beside the reason; one that cannot be taken now (spool full, plugin not loaded) stays and is tried again.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::Intake;
use crate::salt::frame::{self, Answer, Code};

/// The inbox is looked at this often, beside the moments when it should have something: a look is one `readdir`.
const EVERY: Duration = Duration::from_secs(2);

/// What became of one file.
enum Taken {
    Stored,
    Later,
}

/// Takes files in until `stop` is set.
pub async fn watch(intake: Arc<Intake>, mut stop: watch::Receiver<bool>) {
    let directory = intake.config().inbox.clone();
    let mut plugins = intake.dispatch().shared().registry.subscribe();
    let mut told = false;
    loop {
        let names = match list(&directory) {
            Ok(names) => {
                told = false;
                names
            }
            Err(error) => {
                if !std::mem::replace(&mut told, true) {
                    tracing::warn!(inbox = %directory.display(), %error, "cannot read the inbox; hint: `returnerd init` makes it");
                }
                Vec::new()
            }
        };
        let mut count = 0_u64;
        for path in names {
            if *stop.borrow() {
                return;
            }
            match take(&intake, &path).await {
                Taken::Stored => count += 1,
                // What comes after it may still fit, but the order of one returner should stay.
                Taken::Later => {}
            }
        }
        if count > 0 {
            tracing::info!(count, "taken in from the inbox");
        }
        tokio::select! {
            _ = stop.changed() => return,
            _ = plugins.changed() => {}
            () = tokio::time::sleep(EVERY) => {}
        }
    }
}

fn list(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let hidden = path.file_name().and_then(|name| name.to_str()).is_none_or(|name| name.starts_with('.'));
        if !hidden && path.extension().is_some_and(|extension| extension == "frame") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

async fn take(intake: &Intake, path: &Path) -> Taken {
    let file = match tokio::fs::read(path).await {
        Ok(file) => file,
        Err(error) => {
            intake.inbox_waits(path, &format!("it cannot be read: {error}"));
            return Taken::Later;
        }
    };
    // What the shim wrote it may have written under a larger limit; a file is not a flood.
    let body = match frame::body_of_file(&file, usize::MAX) {
        Ok(body) => body,
        Err(error) => {
            set_aside(path, &crate::observe::chain(&error));
            return Taken::Later;
        }
    };
    let (answer, _) = intake.answer(body, (u32::MAX, 0)).await;
    match Answer::from_body(&answer) {
        Ok(Answer::Done(_)) => {
            if let Err(error) = std::fs::remove_file(path) {
                // It is stored; taken a second time it is recognised by its id or stored over itself.
                tracing::warn!(path = %path.display(), %error, "cannot remove a file of the inbox");
            }
            Taken::Stored
        }
        Ok(Answer::Failed { code: Code::BadRequest, error }) => {
            set_aside(path, &error);
            Taken::Later
        }
        Ok(Answer::Failed { error, .. }) => {
            intake.inbox_waits(path, &error);
            Taken::Later
        }
        Err(error) => {
            set_aside(path, &crate::observe::chain(&error));
            Taken::Later
        }
    }
}

fn set_aside(path: &Path, why: &str) {
    tracing::error!(path = %path.display(), "a file of the inbox cannot be read and is set aside as `.bad`: {why}");
    let _ = std::fs::write(path.with_extension("frame.why"), format!("{why}\n"));
    if let Err(error) = std::fs::rename(path, path.with_extension("frame.bad")) {
        tracing::error!(path = %path.display(), %error, "cannot set it aside");
    }
}
