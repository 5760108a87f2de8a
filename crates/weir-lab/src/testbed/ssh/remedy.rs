//! From what OpenSSH's client said to what to do about it.

/// What the client said last, without its banners.
pub fn gist(said: &[String]) -> String {
    let speech = |line: &&String| !line.contains("@@@") && !line.trim().is_empty();
    let lines: Vec<&str> = said.iter().filter(speech).map(|l| l.trim()).collect();
    match lines.as_slice() {
        [] => "ssh said nothing".into(),
        lines => format!("ssh said: {}", lines[lines.len().saturating_sub(3)..].join(" | ")),
    }
}

/// The remedy for a connection that was not made or broke.
pub fn remedy(said: &[String]) -> &'static str {
    const KNOWN: [(&[&str], &str); 8] = [
        (
            &["Host key verification failed", "REMOTE HOST IDENTIFICATION HAS CHANGED"],
            "the host's key is not the one in known_hosts: compare its fingerprint on its console, then log in once by hand",
        ),
        (
            &["Permission denied (", "Too many authentication failures"],
            "put your public key into its authorized_keys, or name the private one with `identity`",
        ),
        (
            &["Identity file", "UNPROTECTED PRIVATE KEY"],
            "name a readable private key of mode 0600 with `identity`",
        ),
        (&["Could not resolve hostname"], "is the name right, and does this machine know it?"),
        (&["Connection refused"], "is sshd running there, on this port?"),
        (
            &["timed out", "No route to host", "Network is unreachable"],
            "is the host on, and is its network reachable from here?",
        ),
        (
            &["GLIBC", "Exec format error", "cannot execute"],
            "the lab's programs do not run there: build them for that host's processor and C library",
        ),
        (
            &["not found", "No space left", "Permission denied", "Read-only file system"],
            "the host needs sh, mktemp, head, sha256sum, env and room in its temporary folder, mounted without noexec",
        ),
    ];
    let heard = |words: &[&str]| said.iter().any(|line| words.iter().any(|word| line.contains(word)));
    let known = KNOWN.iter().find(|(words, _)| heard(words));
    known.map_or("try `ssh` to it by hand with the same options", |(_, remedy)| remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_fail_has_its_own_remedy() {
        for (said, expected) in [
            ("Host key verification failed.", "compare its fingerprint"),
            ("root@10.0.0.1: Permission denied (publickey).", "authorized_keys"),
            ("sh: 1: /tmp/weir-lab-1/weir-lab: Permission denied", "noexec"),
            ("ssh: connect to host x port 22: Connection refused", "is sshd running"),
            ("ssh: connect to host x port 22: Connection timed out", "is the host on"),
            ("Timeout, server x not responding. timed out", "is the host on"),
            ("weir-lab: /lib/libc.so.6: version `GLIBC_2.39' not found", "C library"),
            ("sh: 1: mktemp: not found", "needs sh"),
            ("something else", "by hand"),
        ] {
            let got = remedy(&[said.to_string()]);
            assert!(got.contains(expected), "{said}: {got}");
        }
    }

    #[test]
    fn banners_are_left_out() {
        let said = ["@@@@@@", "@  WARNING  @", "Host key verification failed.", ""].map(String::from);
        assert_eq!(gist(&said), "ssh said: @  WARNING  @ | Host key verification failed.");
        assert_eq!(gist(&[]), "ssh said nothing");
    }
}
