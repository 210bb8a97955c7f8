//! [`Settings`]: how to connect to the hub, and [`Event`]: what a pull reports.

use std::ops::ControlFlow;
use std::time::Duration;

use crate::error::{HubError, Result};

/// Connection settings of the hub.
#[derive(Clone)]
pub struct Settings {
    /// Base URL.
    pub endpoint: String,
    /// Access token for gated and private models. Sent to the endpoint's own origin only.
    pub token: Option<String>,
    /// Proxy URL.
    pub proxy: Option<String>,
    /// Hosts reached without the proxy: `example.com`, or `.example.com` for all its subdomains.
    pub no_proxy: Vec<String>,
    /// Timeouts and retries.
    pub timing: Timing,
    /// Parallel range requests for large files.
    pub ranges: Ranges,
    /// Names of these settings in error messages.
    pub names: Names,
}

/// Names of the settings in error messages: the variables or flags that set them.
#[derive(Debug, Clone)]
pub struct Names {
    /// Name of [`Settings::endpoint`].
    pub endpoint: String,
    /// Name of [`Settings::token`].
    pub token: String,
    /// Name of [`Settings::proxy`].
    pub proxy: String,
}

impl Default for Names {
    fn default() -> Names {
        Names { endpoint: "the endpoint".into(), token: "the token".into(), proxy: "the proxy".into() }
    }
}

/// Parallel download of large files: range requests over several connections.
#[derive(Debug, Clone)]
pub struct Ranges {
    /// Most parallel connections; with 1 every file is one stream.
    pub connections: usize,
    /// Smallest piece in bytes, for slow connections.
    pub least: u64,
    /// Largest piece in bytes. A few pieces per connection are buffered in memory.
    pub most: u64,
}

impl Default for Ranges {
    fn default() -> Ranges {
        Ranges { connections: 6, least: 1 << 20, most: 8 << 20 }
    }
}

impl Ranges {
    /// True if that many bytes are worth several connections.
    pub(crate) fn are_for(&self, bytes: u64) -> bool {
        self.connections > 1 && bytes >= self.most.saturating_mul(2)
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            endpoint: "https://huggingface.co".to_owned(),
            token: None,
            proxy: None,
            no_proxy: Vec::new(),
            timing: Timing::default(),
            ranges: Ranges::default(),
            names: Names::default(),
        }
    }
}

/// Timeouts and retries. A download as a whole has no time limit.
#[derive(Debug, Clone)]
pub struct Timing {
    /// Time to connect.
    pub connect: Duration,
    /// Time without any byte received.
    pub idle: Duration,
    /// Attempts before giving up, counted from the last progress.
    pub tries: u32,
    /// Delay before the second attempt; doubled for each further one.
    pub first_wait: Duration,
    /// Longest delay, including delays that the server asks for.
    pub longest_wait: Duration,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            connect: Duration::from_secs(15),
            idle: Duration::from_secs(60),
            tries: 6,
            first_wait: Duration::from_millis(500),
            // The hub's rate limits use windows of five minutes.
            longest_wait: Duration::from_secs(300),
        }
    }
}

/// Is told of a pull's progress, and says whether to go on.
pub type Watch<'a> = dyn FnMut(Event<'_>) -> ControlFlow<()> + 'a;

/// Tells of progress. Fails if the pull is to stop.
pub(crate) fn tell(watch: &mut Watch<'_>, event: Event<'_>) -> Result<()> {
    match watch(event) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(HubError::Stopped),
    }
}

/// Progress of a pull.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The missing files, before they are downloaded. Each of them ends with a `Progress` whose `done` is its `total`.
    Missing {
        /// Number of files.
        files: usize,
        /// Bytes still to download.
        bytes: u64,
    },
    /// A file's progress.
    Progress {
        /// File name.
        file: &'a str,
        /// Bytes so far, including those of earlier pulls: a file's first event has only those.
        done: u64,
        /// Size of the file.
        total: u64,
    },
    /// Another process or thread is downloading the file; this pull waits for it.
    Waiting {
        /// File name.
        file: &'a str,
    },
    /// A request failed and will be retried.
    Retrying {
        /// The requested file or listing.
        what: &'a str,
        /// Why it failed.
        why: &'a str,
        /// Delay before the next attempt.
        wait: Duration,
    },
    /// The hub cannot be reached; the cached model is used as it is.
    Offline {
        /// Why not.
        why: &'a HubError,
    },
}
