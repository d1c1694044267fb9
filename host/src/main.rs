//! The program: arguments and exit code only.

fn main() -> std::process::ExitCode {
    returnerd::cli::run()
}
