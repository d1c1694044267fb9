//! `make docs`: writes the tables of options in the plugins' READMEs anew.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "it ends with a message if a part fails"
)]

use returnerd_tests::options_table::readmes;

fn main() {
    for readme in readmes() {
        if readme.text != readme.wanted {
            std::fs::write(&readme.path, &readme.wanted).unwrap();
            println!("wrote {}", readme.path.display());
        }
    }
}
