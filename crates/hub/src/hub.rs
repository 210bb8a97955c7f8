//! Fetching a model: ask for its files, choose, download what is missing, and only then say that it is there.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use ureq::http::{Method, header};

use crate::cache::{Cache, Snapshot};
use crate::download::{self, Blob, BlobLock};
use crate::error::{HubError, Result};
use crate::http::{self, Http, Span, Target, Tries, Trouble};
use crate::name::{ModelRef, RepoName, check_path, is_commit};
use crate::pick::{has_tokenizer, pick};

/// How to reach the hub.
#[derive(Clone)]
pub struct Settings {
    /// Its address.
    pub endpoint: String,
    /// A token for models that are not open to all. It is sent to the endpoint's own host only.
    pub token: Option<String>,
    /// A proxy's address.
    pub proxy: Option<String>,
    /// Hosts that are reached without the proxy: `example.com`, or `.example.com` for all below it.
    pub no_proxy: Vec<String>,
    /// Time limits.
    pub timing: Timing,
    /// How large files are fetched.
    pub ranges: Ranges,
    /// What messages call these settings.
    pub names: Names,
}

/// What messages call settings: the variables or flags by which they were set.
#[derive(Debug, Clone)]
pub struct Names {
    /// The hub's address.
    pub endpoint: String,
    /// The token.
    pub token: String,
    /// The proxy.
    pub proxy: String,
}

impl Default for Names {
    fn default() -> Names {
        Names { endpoint: "the endpoint".into(), token: "the token".into(), proxy: "the proxy".into() }
    }
}

/// How large files are fetched: in pieces, over several connections at once.
#[derive(Debug, Clone)]
pub struct Ranges {
    /// Connections at once; one for as few as can be.
    pub connections: usize,
    /// Bytes of a piece at least, for slow lines.
    pub least: u64,
    /// Bytes of a piece at most. A few pieces for each connection wait in memory.
    pub most: u64,
}

impl Default for Ranges {
    fn default() -> Ranges {
        Ranges { connections: 6, least: 1 << 20, most: 8 << 20 }
    }
}

impl Ranges {
    /// Is so much worth more than one connection?
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

/// How long to wait for what. A download as a whole may take as long as it takes.
#[derive(Debug, Clone)]
pub struct Timing {
    /// For a connection.
    pub connect: Duration,
    /// For the next byte.
    pub idle: Duration,
    /// How often to try before giving up, counted from the last progress.
    pub tries: u32,
    /// Before the second try; doubled for each further one.
    pub first_wait: Duration,
    /// At most, also when the server asks for more.
    pub longest_wait: Duration,
}

/// How often the hub is asked whether it is there at all.
const FIRST_TRIES: u32 = 3;

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            connect: Duration::from_secs(15),
            idle: Duration::from_secs(60),
            tries: 6,
            first_wait: Duration::from_millis(500),
            // The hub counts requests in windows of five minutes.
            longest_wait: Duration::from_secs(300),
        }
    }
}

/// What happens during a pull.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Event<'a> {
    /// So many files are missing, and so many bytes of them. Each will come to a `Progress` where all of it is done.
    Missing {
        /// How many files.
        files: usize,
        /// How many bytes.
        bytes: u64,
    },
    /// More of a file has arrived.
    Progress {
        /// The file.
        file: &'a str,
        /// Bytes so far, including those of earlier pulls: the first event of a file has those alone.
        done: u64,
        /// Bytes in all.
        total: u64,
    },
    /// Another pull is fetching the file; this one waits for it.
    Waiting {
        /// The file.
        file: &'a str,
    },
    /// Something failed and is tried again.
    Retrying {
        /// What is being fetched.
        what: &'a str,
        /// What happened.
        why: &'a str,
        /// How long until the next try.
        wait: Duration,
    },
    /// The hub cannot be reached; the model in the cache is used as it is.
    Offline {
        /// What happened.
        why: &'a HubError,
    },
}

/// The hub and the cache in front of it.
pub struct Hub {
    cache: Cache,
    http: Arc<Http>,
}

/// What the hub tells about a model.
#[derive(Deserialize)]
struct Listing {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
}

/// A model that a search at the hub found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Match {
    /// Its name.
    pub repo: RepoName,
    /// How often it was downloaded of late.
    pub downloads: u64,
}

/// What a search answers, as far as it is read.
#[derive(Deserialize)]
struct FoundModel {
    id: String,
    #[serde(default)]
    downloads: u64,
}

/// Why an answer of the hub cannot be read.
fn unread(why: &serde_json::Error) -> String {
    match why.classify() {
        // A field is missing, or is another thing.
        serde_json::error::Category::Data => http::printable(&why.to_string()),
        serde_json::error::Category::Eof => "it is JSON that ends too early".to_owned(),
        _ => "it is not JSON".to_owned(),
    }
}

/// How many models a search brings.
const MOST_FOUND: usize = 20;

impl Hub {
    /// Models with GGUF files whose names contain a text, the most often downloaded first. The hub is asked once.
    pub fn search(&self, text: &str) -> Result<Vec<Match>> {
        let what = "the search";
        // There is no model that this is about.
        let nobody = RepoName::parse("search")?;
        let target = Target { repo: &nobody, revision: "", file: None };
        let cannot = |why: String| HubError::Answer { what: what.to_owned(), why };
        let answer = match self.http.json(&self.http.search_url(text, MOST_FOUND), &target) {
            Ok(answer) => answer,
            Err(Trouble::Passing { why, .. }) => return Err(cannot(why)),
            Err(Trouble::Final(HubError::Network { why, .. } | HubError::Answer { why, .. })) => {
                return Err(cannot(why));
            }
            Err(Trouble::Final(HubError::Status { status, host, .. })) => {
                return Err(cannot(format!("{host} answered {status}")));
            }
            Err(Trouble::Final(_)) => return Err(cannot("the hub refuses it".to_owned())),
        };
        let found: Vec<FoundModel> = serde_json::from_slice(&answer)
            .map_err(|e| cannot(format!("it is no list of models: {}", unread(&e))))?;
        // What has an unsafe name is left out.
        let named =
            |m: FoundModel| Some(Match { repo: RepoName::parse(&m.id).ok()?, downloads: m.downloads });
        Ok(found.into_iter().filter_map(named).take(MOST_FOUND).collect())
    }

    /// Checks the settings. Nothing is sent yet.
    pub fn new(cache: Cache, settings: &Settings) -> Result<Hub> {
        Ok(Hub { cache, http: Arc::new(Http::new(settings)?) })
    }

    /// Makes sure that a model is in the cache, in the version that the hub has now. `watch` hears how it goes.
    ///
    /// Where the hub cannot be reached and the cache has the model, that one is returned.
    pub fn pull(&self, model: &ModelRef, watch: &mut dyn FnMut(Event)) -> Result<Snapshot> {
        let cached = match self.cache.find(model) {
            // What is ambiguous among the cached files need not be so among all.
            Err(HubError::Ambiguous { .. }) => None,
            found => found?,
        };
        if let Some(snapshot) = cached.as_ref().filter(|s| model.revision().eq_ignore_ascii_case(&s.commit)) {
            return Ok(snapshot.clone());
        }
        match (self.fetch(model, cached.is_some(), watch), cached) {
            (Err(why), Some(snapshot)) if why.is_network() => {
                watch(Event::Offline { why: &why });
                Ok(snapshot)
            }
            (fetched, _) => fetched,
        }
    }

    fn fetch(&self, model: &ModelRef, is_cached: bool, watch: &mut dyn FnMut(Event)) -> Result<Snapshot> {
        let (commit, files) = self.list_files(model, is_cached, watch)?;
        let choice = pick(&model.repo, &files, model.quant.as_deref())?;
        // Weights that nobody can give text to are not worth the wait.
        if !choice.gguf && !has_tokenizer(&choice.files) {
            return Err(HubError::NoTokenizer { repo: model.repo.clone() });
        }
        self.cache.prepare(&model.repo, &commit)?;
        let target = Target { repo: &model.repo, revision: &commit, file: None };
        let mut blobs = Vec::new();
        for file in &choice.files {
            if !self.cache.has(&model.repo, &commit, file)? {
                blobs.push(self.describe(&Target { file: Some(file), ..target }, watch)?);
            }
        }
        self.check_room(model, &blobs, watch)?;
        for (i, blob) in blobs.iter().enumerate() {
            let fetched = self.fetch_blob(&Target { file: Some(&blob.file), ..target }, blob, watch);
            fetched.map_err(|e| if i > 0 { e.with_kept() } else { e })?;
        }
        if !model.revision().eq_ignore_ascii_case(&commit) {
            self.cache.write_ref(&model.repo, model.revision(), &commit)?;
        }
        Ok(self.cache.snapshot(&model.repo, &commit, &choice))
    }

    /// The commit that the revision stands for, and the names of its files.
    fn list_files(
        &self,
        model: &ModelRef,
        is_cached: bool,
        watch: &mut dyn FnMut(Event),
    ) -> Result<(String, Vec<String>)> {
        let target = Target { repo: &model.repo, revision: model.revision(), file: None };
        let what = target.what();
        let bad = |why: String| HubError::Answer { what: what.clone(), why };
        let url = self.http.listing_url(&target);
        // This is the first thing that is asked. If there is no network it is now that it shows, and nobody wants to
        // wait for that; least of all with the model at hand.
        let most = if is_cached { 1 } else { self.http.timing.tries.min(FIRST_TRIES) };
        let text =
            Tries::new(&self.http.timing, most).until(&what, watch, || self.http.json(&url, &target))?;
        let listing: Listing = serde_json::from_slice(&text)
            .map_err(|e| bad(format!("it is no list of files: {}", unread(&e))))?;
        if !is_commit(&listing.sha) {
            return Err(bad(format!("{:.50?} is no commit", listing.sha)));
        }
        let files: Vec<_> = listing.siblings.into_iter().map(|s| s.rfilename).collect();
        for file in &files {
            check_path(file).map_err(|why| HubError::FileName {
                repo: model.repo.clone(),
                name: file.chars().take(80).collect(),
                why,
            })?;
        }
        Ok((listing.sha.to_ascii_lowercase(), files))
    }

    /// Asks what a file is called among the blobs, and how long it is.
    fn describe(&self, target: &Target, watch: &mut dyn FnMut(Event)) -> Result<Blob> {
        let file = target.file.unwrap_or_default();
        let what = target.what();
        let url = self.http.file_url(target.repo, target.revision, file);
        let bad = |why: &str| Trouble::Final(HubError::Answer { what: what.clone(), why: why.to_owned() });
        Tries::new(&self.http.timing, self.http.timing.tries).until(&what, watch, || {
            let answer = self.http.ask(Method::HEAD, &url, Span::ALL, target)?;
            let redirects = (300..400).contains(&answer.status());
            if !redirects && answer.status() != 200 {
                return Err(self.http.refusal(&answer, target));
            }
            if answer.header(http::COMMIT).is_some_and(|c| !c.eq_ignore_ascii_case(target.revision)) {
                return Err(bad("it is for another commit"));
            }
            let etag = answer.header(http::LINKED_ETAG).or_else(|| answer.header(header::ETAG));
            let etag = etag
                .and_then(download::clean_etag)
                .ok_or_else(|| bad("it has no ETag to name the file by"))?;
            let own_size = || answer.header(header::CONTENT_LENGTH).filter(|_| !redirects);
            let size = answer.header(http::LINKED_SIZE).or_else(own_size).and_then(|s| s.parse().ok());
            let size = size.ok_or_else(|| bad("it does not tell the file's length"))?;
            Ok(Blob { file: file.to_owned(), etag, size })
        })
    }

    /// Is there room for what is missing?
    fn check_room(&self, model: &ModelRef, blobs: &[Blob], watch: &mut dyn FnMut(Event)) -> Result<()> {
        if blobs.is_empty() {
            return Ok(());
        }
        let mut needed = 0u64;
        for blob in blobs {
            needed = needed.saturating_add(self.cache.missing_bytes(&model.repo, blob));
        }
        let path = self.cache.blobs(&model.repo);
        match download::free_space(&path) {
            Some(free) if needed > free => Err(HubError::DiskFull { path, needed, free }),
            _ => {
                watch(Event::Missing { files: blobs.len(), bytes: needed });
                Ok(())
            }
        }
    }

    fn fetch_blob(&self, target: &Target, blob: &Blob, watch: &mut dyn FnMut(Event)) -> Result<()> {
        let path = self.cache.blobs(target.repo).join(&blob.etag);
        let lock_path = self.cache.lock(target.repo, &blob.etag);
        let lock = BlobLock::take(&lock_path, || watch(Event::Waiting { file: &blob.file }))?;
        download::download(&self.http, target, blob, &path, watch)?;
        drop(lock);
        self.cache.link(target.repo, target.revision, blob)
    }
}
