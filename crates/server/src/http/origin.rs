//! Hosts and origins: which are local enough to be allowed by default, and which settings can never match.

use std::net::IpAddr;

/// Wildcard for all hosts or all origins.
pub(crate) const ANY: &str = "*";

/// Origin schemes of programs on this machine: editors, browser extensions, desktop apps. Pages from the web cannot
/// have them.
const PROGRAMS: [&str; 8] = [
    "app",
    "tauri",
    "capacitor",
    "vscode-webview",
    "vscode-file",
    "chrome-extension",
    "moz-extension",
    "safari-web-extension",
];
/// Suffixes that nobody can register: they resolve to this machine or its own network.
const NEAR: [&str; 5] = [".local", ".internal", ".lan", ".home.arpa", ".localhost"];

/// True if an origin is a page of this machine itself: a program's, or one of another server on it.
///
/// `null` is not: pages from anywhere can have it.
pub(crate) fn is_local(origin: &str) -> bool {
    let Some((scheme, rest)) = origin.split_once("://") else { return false };
    if PROGRAMS.contains(&scheme) {
        return true;
    }
    let name = match rest.rsplit_once(':') {
        Some((name, port)) if !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => rest,
    };
    let web = scheme == "http" || scheme == "https";
    let loopback = |name: &str| {
        ["localhost", "127.0.0.1", "[::1]"].contains(&name)
            || name.strip_suffix(".localhost").is_some_and(|label| is_name(label) && !label.is_empty())
    };
    web && loopback(name)
}

/// True if a host is a name in this machine's own network. Names without a dot and those with a suffix in [`NEAR`] are
/// in no public zone, so no web page can be served under them and rebound to point here.
pub(crate) fn is_near(host: &str) -> bool {
    let far = host.contains('.') && !NEAR.iter().any(|end| host.len() > end.len() && host.ends_with(end));
    // A number is an address in one of the rare notations, such as decimal or hexadecimal.
    is_name(host) && !far && !host.starts_with("0x") && !host.bytes().all(|b| b.is_ascii_digit() || b == b'.')
}

fn is_name(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_' || b == b'.';
    !text.is_empty() && text.len() <= 253 && text.bytes().all(plain)
}

/// Fails if requests cannot have this host; the error says what to give instead.
pub(crate) fn check_host(host: &str) -> Result<(), String> {
    let lower = host.to_ascii_lowercase();
    let bare = lower.split_once("://").map_or(lower.as_str(), |(_, rest)| rest);
    let bare = bare.split(['/', '?', '#']).next().unwrap_or_default();
    let is_address = |text: &str| text.parse::<IpAddr>().is_ok();
    let name = match bare.rsplit_once(':') {
        Some((name, port)) if !is_address(bare) && port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => bare,
    };
    // Requests have IPv6 addresses in brackets.
    let name = if is_address(name) && name.contains(':') { format!("[{name}]") } else { name.to_owned() };
    let inner = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let can_be = match inner {
        Some(inner) => is_address(inner),
        None => is_name(&name),
    };
    match host == ANY || (lower == name && can_be) {
        true => Ok(()),
        false if can_be => Err(format!(
            "--allow-host {host}: give the name alone, without scheme and port: --allow-host {name}"
        )),
        false => Err(format!(
            "--allow-host {host}: that is no name of a host; give one such as tallow or chat.example, or * for any"
        )),
    }
}

/// Fails if requests cannot have this origin; the error says what to give instead.
pub(crate) fn check_origin(origin: &str) -> Result<(), String> {
    let wrong = |instead: String| Err(format!("--allow-origin {origin}: {instead}"));
    if origin == ANY || origin == "null" {
        return Ok(());
    }
    let Some((scheme, rest)) = origin.split_once("://") else {
        let name = origin.split('/').next().unwrap_or_default();
        return wrong(format!(
            "an origin begins with a scheme: --allow-origin https://{name}, or http://{name}"
        ));
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    if end < rest.len() {
        return wrong(format!("an origin has no path: --allow-origin {scheme}://{}", &rest[..end]));
    }
    if rest.contains('*') {
        return wrong("an origin has no * in it; name each, or give * alone for any".into());
    }
    let usual = match scheme.to_ascii_lowercase().as_str() {
        "http" => ":80",
        "https" => ":443",
        _ => "",
    };
    if let Some(name) = rest.strip_suffix(usual).filter(|_| !usual.is_empty()) {
        return wrong(format!("browsers leave out the usual port: --allow-origin {scheme}://{name}"));
    }
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._:[]".contains(&b);
    let scheme_is_one =
        scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b)) && !scheme.is_empty();
    match scheme_is_one && !rest.is_empty() && rest.bytes().all(plain) {
        true => Ok(()),
        false => wrong(
            "that is no origin; give one such as https://chat.example or http://192.168.1.5:3000".into(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_this_machine_are_local_and_no_others() {
        for origin in [
            "http://localhost",
            "http://localhost:3000",
            "https://localhost:8443",
            "http://127.0.0.1:5173",
            "http://[::1]:3000",
            "http://tauri.localhost",
            "tauri://localhost",
            "app://obsidian.md",
            "vscode-webview://1ab2c3",
            "chrome-extension://abcdefgh",
        ] {
            assert!(is_local(origin), "{origin}");
        }
        for origin in [
            "null",
            "file://",
            "https://evil.example",
            "http://localhost.evil.example",
            "http://localhost:3000.evil.example",
            "http://evil.example:80@localhost",
            "http://evil.example/localhost",
            "http://127.0.0.1.nip.io",
            "http://.localhost",
            "http://evil.example/.localhost",
            "http://192.168.1.5",
            "ftp://localhost",
            "localhost",
            "",
        ] {
            assert!(!is_local(origin), "{origin}");
        }
    }

    #[test]
    fn names_of_the_own_network_are_near_and_no_others() {
        for host in ["tallow", "my-box", "box.local", "host.docker.internal", "nas.lan", "x.home.arpa"] {
            assert!(is_near(host), "{host}");
        }
        for host in [
            "evil.example",
            "local",
            "127.1",
            "2130706433",
            "0x7f000001",
            ".local",
            "a b",
            "",
            "localhost.",
            "evil.example.",
            "user@box",
            "box.local.evil.example",
            "internal",
        ] {
            assert_eq!(is_near(host), ["local", "internal"].contains(&host), "{host}");
        }
    }

    #[test]
    fn hosts_and_origins_that_can_never_match_are_refused_with_what_to_type() {
        let message = |checked: Result<(), String>| checked.err().unwrap_or_else(|| "fine".into());
        let hosts = ["tallow", "Chat.Example", "*", "[::1]", "192.168.1.5"];
        assert!(hosts.iter().all(|host| check_host(host).is_ok()));
        let origins = [
            "https://chat.example",
            "http://192.168.1.5:3000",
            "*",
            "null",
            "obsidian://x",
            "http://[::1]:3000",
        ];
        assert!(origins.iter().all(|origin| check_origin(origin).is_ok()));
        let mut all = String::new();
        for host in [
            "http://x",
            "tallow:8080",
            "https://chat.example/v1",
            "::1",
            "[::1]:8080",
            "a b",
            "",
            "*.example",
        ] {
            all += &(message(check_host(host)) + "\n");
        }
        for origin in [
            "chat.example",
            "https://chat.example/",
            "http://x/y",
            "https://*.example",
            "http://",
            "://x",
            "https://a b",
            "https://chat.example:443",
        ] {
            all += &(message(check_origin(origin)) + "\n");
        }
        insta::assert_snapshot!(all, @r"
        --allow-host http://x: give the name alone, without scheme and port: --allow-host x
        --allow-host tallow:8080: give the name alone, without scheme and port: --allow-host tallow
        --allow-host https://chat.example/v1: give the name alone, without scheme and port: --allow-host chat.example
        --allow-host ::1: give the name alone, without scheme and port: --allow-host [::1]
        --allow-host [::1]:8080: give the name alone, without scheme and port: --allow-host [::1]
        --allow-host a b: that is no name of a host; give one such as tallow or chat.example, or * for any
        --allow-host : that is no name of a host; give one such as tallow or chat.example, or * for any
        --allow-host *.example: that is no name of a host; give one such as tallow or chat.example, or * for any
        --allow-origin chat.example: an origin begins with a scheme: --allow-origin https://chat.example, or http://chat.example
        --allow-origin https://chat.example/: an origin has no path: --allow-origin https://chat.example
        --allow-origin http://x/y: an origin has no path: --allow-origin http://x
        --allow-origin https://*.example: an origin has no * in it; name each, or give * alone for any
        --allow-origin http://: that is no origin; give one such as https://chat.example or http://192.168.1.5:3000
        --allow-origin ://x: that is no origin; give one such as https://chat.example or http://192.168.1.5:3000
        --allow-origin https://a b: that is no origin; give one such as https://chat.example or http://192.168.1.5:3000
        --allow-origin https://chat.example:443: browsers leave out the usual port: --allow-origin https://chat.example
        ");
    }
}
