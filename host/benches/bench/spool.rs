//! Appends per second by the number of waiting producers, against a bare file with fdatasync behind the same kind of queue.

use std::time::Duration;

use returnerd::spool::measure;

use crate::figure;

pub(crate) fn run() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for producers in [1, 8, 64, 512] {
        let rate = runtime
            .block_on(measure::appends(dir.path(), producers, 1024, Duration::from_secs(1), 5))
            .unwrap();
        figure(&format!("spool_appends_{producers}"), rate.spool, "per_s");
        figure(&format!("bare_appends_{producers}"), rate.bare, "per_s");
        figure(&format!("spool_to_bare_{producers}"), rate.ratio(), "ratio");
    }
}
