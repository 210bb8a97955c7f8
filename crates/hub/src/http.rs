//! Requests to the hub: redirects, authorization, timeouts and retries.

use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ureq::http::header::{self, HeaderMap, HeaderName};
use ureq::http::{Method, Request, Response, Uri};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body, Proxy};

use crate::error::{HubError, Result};
use crate::name::is_hidden;
use crate::repo::RepoName;
use crate::settings::{Event, Ranges, Settings, Timing, Watch, tell};

/// Far longer than any listing of a model's files.
const LONGEST_JSON: usize = 16 << 20;
const MOST_REDIRECTS: usize = 10;
/// Most characters of a server's message in an error.
const LONGEST_MESSAGE: usize = 300;

/// Why a request failed, and whether it may be retried.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// Transient: a retry may help, not before the delay `after` that the server asked for.
    Transient { why: String, after: Option<Duration> },
    /// Permanent.
    Final(HubError),
}

impl From<HubError> for Trouble {
    fn from(error: HubError) -> Trouble {
        Trouble::Final(error)
    }
}

/// Subject of a request, for errors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) repo: &'a RepoName,
    pub(crate) revision: &'a str,
    pub(crate) file: Option<&'a str>,
}

impl Target<'_> {
    pub(crate) fn what(&self) -> String {
        self.file.map_or_else(|| format!("the files of {}", self.repo), |f| format!("{f} of {}", self.repo))
    }
}

/// A URL, and whether the path of redirects to it never left the hub's origin, so that the token may be sent.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) url: Uri,
    from_hub: bool,
}

/// A byte range of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) from: u64,
    /// End (exclusive); `None` up to the end of the file.
    pub(crate) end: Option<u64>,
}

impl Span {
    /// The whole file.
    pub(crate) const ALL: Span = Span { from: 0, end: None };

    /// Value of the `Range` header; `None` for the whole file.
    fn header(self) -> Option<String> {
        match self {
            Span { from: 0, end: None } => None,
            Span { from, end: None } => Some(format!("bytes={from}-")),
            Span { from, end: Some(end) } => Some(format!("bytes={from}-{}", end.saturating_sub(1))),
        }
    }
}

/// A response, and where it came from.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) response: Response<Body>,
    /// Final URL after redirects.
    pub(crate) place: Place,
    host: String,
}

impl Answer {
    pub(crate) fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    pub(crate) fn header(&self, name: impl Into<HeaderName>) -> Option<&str> {
        text(self.response.headers(), name)
    }
}

/// A header's value; `None` if it is empty or not text.
fn text(headers: &HeaderMap, name: impl Into<HeaderName>) -> Option<&str> {
    headers.get(name.into()).and_then(|v| v.to_str().ok()).map(str::trim).filter(|v| !v.is_empty())
}

/// Headers specific to the hub.
pub(crate) const COMMIT: HeaderName = HeaderName::from_static("x-repo-commit");
pub(crate) const LINKED_ETAG: HeaderName = HeaderName::from_static("x-linked-etag");
pub(crate) const LINKED_SIZE: HeaderName = HeaderName::from_static("x-linked-size");
const ERROR_CODE: HeaderName = HeaderName::from_static("x-error-code");
const ERROR_MESSAGE: HeaderName = HeaderName::from_static("x-error-message");
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// Scheme, host and port, which decide whether the token is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Origin {
    https: bool,
    host: String,
    port: u16,
}

impl Origin {
    fn of(uri: &Uri) -> Option<Origin> {
        let https = match uri.scheme_str()? {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let port = uri.port_u16().unwrap_or(if https { 443 } else { 80 });
        Some(Origin { https, host: uri.host()?.to_ascii_lowercase(), port })
    }

    /// True if a redirect to `other` is allowed: https must not be downgraded to http.
    fn may_lead_to(&self, other: &Origin) -> bool {
        other.https || !self.https
    }
}

/// HTTP client for one hub.
pub(crate) struct Http {
    /// Trusts the system's root certificates.
    agent: Agent,
    /// Trusts Mozilla's root certificates, for systems that have none.
    bundled: Agent,
    has_none: AtomicBool,
    proxy: Option<NamedProxy>,
    base: String,
    home: Origin,
    bearer: Option<header::HeaderValue>,
    pub(crate) timing: Timing,
    pub(crate) ranges: Ranges,
}

impl Http {
    pub(crate) fn new(settings: &Settings) -> Result<Http> {
        let bad = |what: &str, why: &str| HubError::Setting { what: what.to_owned(), why: why.to_owned() };
        let base = settings.endpoint.trim_end_matches('/').to_owned();
        let named = format!("{} ({:.80?})", settings.names.endpoint, settings.endpoint);
        let uri: Uri =
            base.parse().map_err(|_| bad(&named, "it is no address like https://huggingface.co"))?;
        let home = Origin::of(&uri)
            .ok_or_else(|| bad(&named, "it must begin with https:// or http:// and name a host"))?;
        if uri.authority().is_some_and(|a| a.as_str().contains('@')) || uri.query().is_some() {
            return Err(bad(&settings.names.endpoint, "it must have neither a password nor a query"));
        }
        let bearer = settings.token.as_deref().map(str::trim).filter(|t| !t.is_empty()).map(|token| {
            let mut value = header::HeaderValue::from_str(&format!("Bearer {token}"))
                .map_err(|_| bad(&settings.names.token, "it has characters that no token has"))?;
            value.set_sensitive(true);
            Ok::<_, HubError>(value)
        });
        let timing = settings.timing.clone();
        let proxy = proxy(settings)?;
        let agent = |roots: RootCerts| {
            Agent::config_builder()
                .proxy(proxy.as_ref().map(|proxy| proxy.proxy.clone()))
                .tls_config(TlsConfig::builder().root_certs(roots).build())
                .user_agent(concat!("tallow/", env!("CARGO_PKG_VERSION")))
                .max_redirects(0)
                .http_status_as_error(false)
                .timeout_resolve(Some(timing.connect))
                .timeout_connect(Some(timing.connect))
                .timeout_send_request(Some(timing.idle))
                .timeout_recv_response(Some(timing.idle))
                .timeout_per_read(Some(timing.idle))
                .build()
                .new_agent()
        };
        let (agent, bundled) = (agent(RootCerts::PlatformVerifier), agent(RootCerts::WebPki));
        let (bearer, has_none) = (bearer.transpose()?, AtomicBool::new(false));
        let ranges = settings.ranges.clone();
        Ok(Http { agent, bundled, has_none, proxy, base, home, bearer, timing, ranges })
    }

    /// URL of a model's list of files.
    pub(crate) fn listing_url(&self, target: &Target) -> String {
        format!("{}/api/models/{}/revision/{}", self.base, target.repo, encode(target.revision, ""))
    }

    /// URL of a search: GGUF models whose names contain `text`, most downloaded first.
    pub(crate) fn search_url(&self, text: &str, most: usize) -> String {
        let query =
            format!("search={}&filter=gguf&sort=downloads&direction=-1&limit={most}", encode(text, ""));
        format!("{}/api/models?{query}", self.base)
    }

    /// URL of a file.
    pub(crate) fn file_url(&self, repo: &RepoName, commit: &str, file: &str) -> String {
        format!("{}/{repo}/resolve/{commit}/{}", self.base, encode(file, "/"))
    }

    /// Requests `url` at the hub, following redirects.
    pub(crate) fn ask(
        &self,
        method: Method,
        url: &str,
        span: Span,
        target: &Target,
    ) -> std::result::Result<Answer, Trouble> {
        let why = "its address is not valid".to_owned();
        let url = url.parse().map_err(|_| HubError::Answer { what: target.what(), why })?;
        self.ask_at(method, Place { url, from_hub: true }, span, target)
    }

    /// Sends a request, following redirects. The token is sent to the hub's own origin only, and no longer once a
    /// redirect has left it. A HEAD request ends at the redirect that already describes the file.
    pub(crate) fn ask_at(
        &self,
        method: Method,
        place: Place,
        span: Span,
        target: &Target,
    ) -> std::result::Result<Answer, Trouble> {
        let refuse = |why: &str| HubError::Answer { what: target.what(), why: why.to_owned() };
        let Place { mut url, from_hub: mut at_home } = place;
        for _ in 0..=MOST_REDIRECTS {
            let origin = Origin::of(&url)
                .ok_or_else(|| refuse("it redirects to something that is not a web address"))?;
            at_home &= origin == self.home;
            if !self.home.may_lead_to(&origin) {
                return Err(refuse("it redirects from https to plain http").into());
            }
            let mut request = Request::builder()
                .method(method.clone())
                .uri(&url)
                .header(header::ACCEPT_ENCODING, "identity");
            if let Some(bearer) = self.bearer.as_ref().filter(|_| at_home) {
                request = request.header(header::AUTHORIZATION, bearer);
            }
            if let Some(range) = span.header() {
                request = request.header(header::RANGE, range);
            }
            let request = request.body(()).map_err(|_| refuse("its address is not valid"))?;
            let response = self.run(request).map_err(|e| self.no_answer(&origin.host, target, &e))?;
            let place = Place { url: url.clone(), from_hub: at_home };
            let answer = Answer { response, place, host: origin.host };
            let redirects = matches!(answer.status(), 301 | 302 | 303 | 307 | 308);
            if !redirects || method == Method::HEAD && answer.header(LINKED_ETAG).is_some() {
                return Ok(answer);
            }
            let location =
                answer.header(header::LOCATION).ok_or_else(|| refuse("it redirects to nowhere"))?;
            url = join(&url, location)
                .ok_or_else(|| refuse("it redirects to something that is not a web address"))?;
        }
        Err(refuse("it redirects in circles").into())
    }

    /// Sends a request, with Mozilla's root certificates if the system has none.
    fn run(&self, request: Request<()>) -> std::result::Result<Response<Body>, ureq::Error> {
        if !self.has_none.load(Ordering::Relaxed) {
            match self.agent.run(request.clone()) {
                Err(ureq::Error::Rustls(e)) if e.to_string().contains("No CA certificates") => {
                    self.has_none.store(true, Ordering::Relaxed);
                }
                answered => return answered,
            }
        }
        self.bundled.run(request)
    }

    /// The error for a request without a response.
    fn no_answer(&self, host: &str, target: &Target, error: &ureq::Error) -> Trouble {
        // The peer of the connection (host or proxy), and a note on the final host if there is a proxy.
        let (to, beyond) = match self.proxy.as_ref().filter(|proxy| proxy.is_for(host)) {
            Some(proxy) => (proxy.name.as_str(), format!(" (on the way to {host})")),
            None => (host, String::new()),
        };
        let unproven = |why: &dyn std::fmt::Display| {
            let why = printable(&why.to_string());
            let why = format!(
                "{host} does not prove who it is ({why}); is there a proxy in between? Its certificate authority has to be \
                 among this system's, or in the file that SSL_CERT_FILE names"
            );
            HubError::Network { what: target.what(), why, tries: 1, kept: false }.into()
        };
        let why = match error {
            ureq::Error::Timeout(_) => format!("{to} did not answer in time{beyond}"),
            ureq::Error::HostNotFound => format!("the name of {to} is not known; is there a network?"),
            // A TLS error. A bad certificate will stay bad.
            ureq::Error::Io(e) if e.kind() == io::ErrorKind::InvalidData => return unproven(e),
            ureq::Error::Rustls(e) => return unproven(e),
            ureq::Error::Io(e) => format!("no connection to {to}: {e}{beyond}"),
            ureq::Error::ConnectProxyFailed(e) => {
                format!("{to} refuses to connect to {host}: {}", printable(e))
            }
            e => format!("{to}: {}{beyond}", printable(&e.to_string())),
        };
        Trouble::Transient { why, after: None }
    }

    /// GET of a short text, read as a whole.
    pub(crate) fn json(&self, url: &str, target: &Target) -> std::result::Result<Vec<u8>, Trouble> {
        let answer = self.ask(Method::GET, url, Span::ALL, target)?;
        if answer.status() != 200 {
            return Err(self.refusal(&answer, target));
        }
        let mut text = Vec::new();
        let mut body = answer.response.into_body().into_reader();
        let mut chunk = vec![0; 64 << 10];
        // A server may stay within the idle timeout and still never finish.
        let start = Instant::now();
        while start.elapsed() < self.timing.idle.saturating_mul(4) {
            let n = body.read(&mut chunk).map_err(|e| cut_off(&e))?;
            if n == 0 {
                return Ok(text);
            }
            text.extend_from_slice(&chunk[..n]);
            if text.len() > LONGEST_JSON {
                let why = format!("it is longer than {} MiB", LONGEST_JSON >> 20);
                return Err(HubError::Answer { what: target.what(), why }.into());
            }
        }
        Err(Trouble::Transient { why: format!("{} is too slow", answer.host), after: None })
    }

    /// The error for an unsuccessful status.
    pub(crate) fn refusal(&self, answer: &Answer, target: &Target) -> Trouble {
        let (repo, hub) = (target.repo.clone(), self.base.clone());
        let status = answer.status();
        let why = format!("{} answered {status}", answer.host);
        if matches!(status, 408 | 425 | 429) || status >= 500 {
            return Trouble::Transient { why, after: pause(answer) };
        }
        let message = printable(answer.header(ERROR_MESSAGE).unwrap_or_default());
        let has_token = self.bearer.is_some();
        let code = answer.header(ERROR_CODE).unwrap_or_default();
        Trouble::Final(match (status, code) {
            _ if !answer.place.from_hub => {
                HubError::Status { host: answer.host.clone(), status, what: target.what(), message }
            }
            (_, "GatedRepo") => HubError::Gated { repo, hub },
            (_, "RevisionNotFound") => {
                HubError::NoRevision { repo, revision: target.revision.to_owned(), hub }
            }
            (401, _) if has_token && message.contains("Invalid credentials") => HubError::Token { hub },
            // Without a token the hub answers 401, not 404, for a repository that does not exist.
            (_, "RepoNotFound") | (401, _) => HubError::NoModel { repo, hub },
            (403, _) if message.is_empty() => HubError::Gated { repo, hub },
            (404, _) => match target.file {
                Some(file) => HubError::NoFile { repo, file: file.to_owned() },
                None => HubError::NoModel { repo, hub },
            },
            _ => HubError::Status { host: answer.host.clone(), status, what: target.what(), message },
        })
    }
}

/// Attempts so far, and the delay before the next (exponential backoff).
#[derive(Debug)]
pub(crate) struct Tries<'a> {
    timing: &'a Timing,
    done: u32,
    most: u32,
    wait: Duration,
}

impl<'a> Tries<'a> {
    pub(crate) fn new(timing: &'a Timing, most: u32) -> Tries<'a> {
        Tries { timing, done: 0, most, wait: timing.first_wait }
    }

    /// Resets the attempts and the delay after progress.
    pub(crate) fn reset(&mut self) {
        *self = Tries::new(self.timing, self.most);
    }

    /// Sleeps before the next attempt, or returns the error if there is to be none.
    pub(crate) fn pause(&mut self, what: &str, trouble: Trouble, watch: &mut Watch<'_>) -> Result<()> {
        let (why, after) = match trouble {
            Trouble::Final(error) => return Err(error),
            Trouble::Transient { why, after } => (why, after),
        };
        self.done += 1;
        if let Some(wait) = after.filter(|w| *w > self.timing.longest_wait) {
            return Err(HubError::Busy { what: what.to_owned(), why, wait, kept: false });
        }
        if self.done >= self.most {
            return Err(HubError::Network { what: what.to_owned(), why, tries: self.done, kept: false });
        }
        let wait = after.unwrap_or(self.wait);
        self.wait = self.wait.saturating_mul(2).min(self.timing.longest_wait);
        tell(watch, Event::Retrying { what, why: &why, wait })?;
        std::thread::sleep(wait);
        Ok(())
    }

    /// Repeats `step` until it succeeds, fails permanently or runs out of attempts.
    pub(crate) fn until<T>(
        mut self,
        what: &str,
        watch: &mut Watch<'_>,
        mut step: impl FnMut() -> std::result::Result<T, Trouble>,
    ) -> Result<T> {
        loop {
            match step() {
                Ok(done) => return Ok(done),
                Err(trouble) => self.pause(what, trouble, watch)?,
            }
        }
    }
}

/// The error for a body that ended early.
pub(crate) fn cut_off(error: &io::Error) -> Trouble {
    let timed_out =
        error.get_ref().and_then(|e| e.downcast_ref()).is_some_and(|e| matches!(e, ureq::Error::Timeout(_)));
    let why = match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => "nothing more arrived in time".to_owned(),
        _ if timed_out => "nothing more arrived in time".to_owned(),
        io::ErrorKind::UnexpectedEof => "the connection was cut".to_owned(),
        _ => format!("the connection broke: {}", printable(&error.to_string())),
    };
    Trouble::Transient { why, after: None }
}

/// Delay that the server asks for: `Retry-After: 30`, or the hub's `RateLimit: "api";r=0;t=30`.
fn pause(answer: &Answer) -> Option<Duration> {
    let reset = || answer.header(RATE_LIMIT)?.split(';').find_map(|p| p.trim().strip_prefix("t="));
    let seconds =
        answer.header(header::RETRY_AFTER).or_else(|| reset().filter(|_| answer.status() == 429))?;
    seconds.trim().parse().ok().map(Duration::from_secs)
}

/// A proxy, and its name in messages.
struct NamedProxy {
    proxy: Proxy,
    /// Its address without the password, and the setting it comes from.
    name: String,
}

impl NamedProxy {
    /// True if this host is reached through the proxy.
    fn is_for(&self, host: &str) -> bool {
        format!("https://{host}/").parse().is_ok_and(|url| !self.proxy.is_no_proxy(&url))
    }
}

fn proxy(settings: &Settings) -> Result<Option<NamedProxy>> {
    let Some(url) = settings.proxy.as_deref().filter(|p| !p.is_empty()) else { return Ok(None) };
    let set = &settings.names.proxy;
    // The URL may contain a password, so the message does not repeat it.
    let bad = |_| HubError::Setting {
        what: set.clone(),
        why: "it is no address like http://host:port or socks5://host:port".to_owned(),
    };
    let plain = Proxy::new(url).map_err(bad)?;
    let scheme = url.split_once("://").map_or("http", |(scheme, _)| scheme);
    let name = format!("the proxy {scheme}://{}:{} ({set})", plain.host(), plain.port());
    let mut proxy = Proxy::builder(plain.protocol()).host(plain.host()).port(plain.port());
    if let Some(user) = plain.username() {
        proxy = proxy.username(user);
    }
    if let Some(password) = plain.password() {
        proxy = proxy.password(password);
    }
    let proxy = settings.no_proxy.iter().fold(proxy, |p, host| p.no_proxy(host)).build().map_err(bad)?;
    Ok(Some(NamedProxy { proxy, name }))
}

/// Percent-encodes everything but unreserved characters and those in `keep`.
fn encode(text: &str, keep: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.~".contains(&b) || keep.as_bytes().contains(&b);
    let one = |b: u8| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") };
    text.bytes().map(one).collect()
}

/// Resolves a `Location` header against the URL that returned it.
fn join(base: &Uri, location: &str) -> Option<Uri> {
    let location = location.split('#').next()?;
    let scheme = base.scheme_str()?;
    let host = base.authority()?;
    let whole = if location.contains("://") && !location.starts_with('/') {
        location.to_owned()
    } else if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{scheme}://{host}{location}")
    } else {
        let folder = base.path().rsplit_once('/').map_or("", |(folder, _)| folder);
        format!("{scheme}://{host}{folder}/{location}")
    };
    whole.parse().ok()
}

/// A server's message, truncated and without control characters.
pub(crate) fn printable(text: &str) -> String {
    text.chars().filter(|c| !is_hidden(*c)).take(LONGEST_MESSAGE).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_joined() {
        let base: Uri = "https://hub.example/a/b/c?x=1".parse().unwrap();
        for (location, want) in [
            ("https://cdn.example/x?y=%20#z", "https://cdn.example/x?y=%20"),
            ("//cdn.example/x", "https://cdn.example/x"),
            ("/x/y", "https://hub.example/x/y"),
            ("d", "https://hub.example/a/b/d"),
        ] {
            assert_eq!(join(&base, location).unwrap().to_string(), want);
        }
        for bad in ["http://", "https://a b/", "\u{1}://x"] {
            assert!(join(&base, bad).is_none_or(|u| Origin::of(&u).is_none()), "{bad:?}");
        }
        for not_web in ["file:///etc/passwd", "ftp://x/y"] {
            assert!(join(&base, not_web).is_none_or(|u| Origin::of(&u).is_none()), "{not_web}");
        }
    }

    #[test]
    fn the_token_knows_its_home() {
        let of = |s: &str| Origin::of(&s.parse().unwrap()).unwrap();
        let home = of("https://Hub.example");
        assert_eq!(home, of("https://hub.example:443/x"));
        for other in [
            "http://hub.example",
            "https://hub.example:8443",
            "https://hub.example.evil.example",
            "https://a@x",
        ] {
            assert_ne!(home, of(other), "{other}");
        }
    }

    #[test]
    fn redirects_do_not_leave_https() {
        let of = |s: &str| Origin::of(&s.parse().unwrap()).unwrap();
        assert!(of("https://a").may_lead_to(&of("https://b")) && of("http://a").may_lead_to(&of("http://b")));
        assert!(
            of("http://a").may_lead_to(&of("https://a")) && !of("https://a").may_lead_to(&of("http://a"))
        );
    }

    #[test]
    fn text_is_encoded() {
        assert_eq!(encode("a b/ü#?.gguf", "/"), "a%20b/%C3%BC%23%3F.gguf");
        assert_eq!(encode("refs/pr/1", ""), "refs%2Fpr%2F1");
    }

    #[test]
    fn settings_that_cannot_work_are_refused() {
        let with = |change: fn(&mut Settings)| {
            let mut settings = Settings::default();
            change(&mut settings);
            Http::new(&settings).map(|_| ()).unwrap_err().to_string()
        };
        insta::assert_snapshot!(with(|s| s.endpoint = "hub".into()), @"the endpoint (\"hub\") cannot be used: it must begin with https:// or http:// and name a host");
        insta::assert_snapshot!(with(|s| s.endpoint = "ftp://hub".into()), @r#"the endpoint ("ftp://hub") cannot be used: it must begin with https:// or http:// and name a host"#);
        insta::assert_snapshot!(with(|s| s.endpoint = "https://me:pw@hub".into()), @"the endpoint cannot be used: it must have neither a password nor a query");
        insta::assert_snapshot!(with(|s| s.token = Some("hf_\nx".into())), @"the token cannot be used: it has characters that no token has");
        insta::assert_snapshot!(with(|s| s.proxy = Some("socks9://x".into())), @"the proxy cannot be used: it is no address like http://host:port or socks5://host:port");
    }
}
