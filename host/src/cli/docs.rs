//! `completions` and `man`: generated from the arguments, so they are never out of date.

use std::path::PathBuf;

use clap::{Args, CommandFactory};

use super::{Cli, CliError};

#[derive(Debug, Args)]
pub(super) struct CompletionsArguments {
    /// The shell.
    shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub(super) struct ManArguments {
    /// The directory to write the pages into; without it the main page goes to stdout.
    directory: Option<PathBuf>,
}

pub(super) fn completions(arguments: &CompletionsArguments) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "returnerd", &mut script);
    super::print_line(String::from_utf8_lossy(&script).trim_end());
    Ok(())
}

pub(super) fn man(arguments: &ManArguments) -> Result<(), CliError> {
    match &arguments.directory {
        Some(directory) => {
            std::fs::create_dir_all(directory).map_err(CliError::file("make", directory))?;
            clap_mangen::generate_to(Cli::command(), directory)
                .map_err(CliError::file("write into", directory))
        }
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(Cli::command())
                .render(&mut page)
                .map_err(|error| CliError::Text(format!("cannot write the manual page: {error}")))?;
            super::print_line(String::from_utf8_lossy(&page).trim_end());
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }
}
