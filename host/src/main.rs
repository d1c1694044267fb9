//! The program: arguments, exit code and the allocator.

/// A return is some hundred small allocations on its way, on several threads, and a large one has buffers of megabytes that glibc's
/// allocator would keep for ever. `tests/bench/README.md` has what this one brought.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    returnerd::cli::run()
}
