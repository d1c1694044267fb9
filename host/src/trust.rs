//! Whom files and directories that decide what runs may belong to.

use std::os::unix::fs::MetadataExt;

/// How somebody else than root and the daemon's own user could write to this, if so, with the command that ends it.
pub fn foreign(metadata: &std::fs::Metadata) -> Option<String> {
    judge(metadata.mode() & 0o7777, metadata.uid(), nix::unistd::geteuid().as_raw())
}

fn judge(mode: u32, owner: u32, own: u32) -> Option<String> {
    if mode & 0o022 != 0 {
        Some(format!("can be written to by others (mode {mode:o}); hint: `chmod go-w` it"))
    } else if owner != 0 && owner != own {
        Some(format!(
            "belongs to another user (uid {owner}); hint: `chown` it to root or to the daemon's user"
        ))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_and_the_daemons_user_may_write() {
        assert_eq!(judge(0o755, 0, 998), None);
        assert_eq!(judge(0o644, 998, 998), None);
        assert!(judge(0o664, 998, 998).unwrap().contains("mode 664"));
        assert!(judge(0o757, 0, 0).unwrap().contains("chmod go-w"));
        assert!(judge(0o755, 1_000, 998).unwrap().contains("uid 1000"));
        assert!(judge(0o755, 1_000, 0).unwrap().contains("chown"));
    }
}
