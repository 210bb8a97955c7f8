//! Pulling a model: list its files, pick some, download what is missing, and only then write the ref.

use std::sync::Arc;

use serde::Deserialize;
use ureq::http::{Method, header};

use crate::blob::{self, Blob, BlobLock};
use crate::cache::{Cache, Snapshot};
use crate::download::download;
use crate::error::{HubError, Result};
use crate::http::{self, Http, Span, Target, Tries, Trouble};
use crate::name::{ModelRef, check_path, is_commit};
use crate::pick::{has_tokenizer, pick};
use crate::repo::RepoName;
use crate::settings::{Event, Settings, Watch, tell};

/// Most attempts of a pull's first request, which shows whether the hub can be reached.
const FIRST_TRIES: u32 = 3;

/// The hub, with the cache in front of it.
pub struct Hub {
    cache: Cache,
    http: Arc<Http>,
}

/// The hub's description of a model (`/api/models/.../revision/...`).
#[derive(Deserialize)]
struct Listing {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
}

/// A search result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Match {
    /// Name of the model.
    pub repo: RepoName,
    /// Recent downloads, as counted by the hub.
    pub downloads: u64,
}

/// A search result as JSON: the fields that are used.
#[derive(Deserialize)]
struct FoundModel {
    id: String,
    #[serde(default)]
    downloads: u64,
}

/// Why an answer of the hub cannot be parsed.
fn unread(why: &serde_json::Error) -> String {
    match why.classify() {
        // A field is missing or has another type.
        serde_json::error::Category::Data => http::printable(&why.to_string()),
        serde_json::error::Category::Eof => "it is JSON that ends too early".to_owned(),
        _ => "it is not JSON".to_owned(),
    }
}

/// Most results of a search.
const MOST_FOUND: usize = 20;

impl Hub {
    /// Searches models with GGUF files whose names contain `text`, most downloaded first. The request is not retried.
    pub fn search(&self, text: &str) -> Result<Vec<Match>> {
        let what = "the search";
        // A target needs a repository; this one appears in no message.
        let nobody = RepoName::parse("search")?;
        let target = Target { repo: &nobody, revision: "", file: None };
        let cannot = |why: String| HubError::Answer { what: what.to_owned(), why };
        let answer = match self.http.json(&self.http.search_url(text, MOST_FOUND), &target) {
            Ok(answer) => answer,
            Err(Trouble::Transient { why, .. }) => return Err(cannot(why)),
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
        // Results with invalid names are skipped.
        let named =
            |m: FoundModel| Some(Match { repo: RepoName::parse(&m.id).ok()?, downloads: m.downloads });
        Ok(found.into_iter().filter_map(named).take(MOST_FOUND).collect())
    }

    /// Checks the settings. Sends no request.
    pub fn new(cache: Cache, settings: &Settings) -> Result<Hub> {
        Ok(Hub { cache, http: Arc::new(Http::new(settings)?) })
    }

    /// Makes sure that the hub's current version of a model is in the cache. `watch` is told of the progress, and may end
    /// it.
    ///
    /// If the hub cannot be reached, the cached version is returned where there is one.
    pub fn pull(&self, model: &ModelRef, watch: &mut Watch<'_>) -> Result<Snapshot> {
        let cached = match self.cache.find(model) {
            // A choice that is ambiguous among the cached files may be clear among all files.
            Err(HubError::Ambiguous { .. }) => None,
            found => found?,
        };
        if let Some(snapshot) = cached.as_ref().filter(|s| model.revision().eq_ignore_ascii_case(&s.commit)) {
            return Ok(snapshot.clone());
        }
        match (self.fetch(model, cached.is_some(), watch), cached) {
            (Err(why), Some(snapshot)) if why.is_network() => {
                tell(watch, Event::Offline { why: &why })?;
                Ok(snapshot)
            }
            (fetched, _) => fetched,
        }
    }

    fn fetch(&self, model: &ModelRef, is_cached: bool, watch: &mut Watch<'_>) -> Result<Snapshot> {
        let (commit, files) = self.list_files(model, is_cached, watch)?;
        let choice = pick(&model.repo, &files, model.quant.as_deref())?;
        // Weights without a tokenizer are useless, so refuse them before downloading.
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

    /// The commit of the revision, and the names of its files.
    fn list_files(
        &self,
        model: &ModelRef,
        is_cached: bool,
        watch: &mut Watch<'_>,
    ) -> Result<(String, Vec<String>)> {
        let target = Target { repo: &model.repo, revision: model.revision(), file: None };
        let what = target.what();
        let bad = |why: String| HubError::Answer { what: what.clone(), why };
        let url = self.http.listing_url(&target);
        // This is the first request of a pull, so a missing network shows here. Few attempts, to fail fast; a single
        // one if the model is cached.
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

    /// Asks for a file's ETag, which names its blob, and its size.
    fn describe(&self, target: &Target, watch: &mut Watch<'_>) -> Result<Blob> {
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
            let etag =
                etag.and_then(blob::clean_etag).ok_or_else(|| bad("it has no ETag to name the file by"))?;
            let own_size = || answer.header(header::CONTENT_LENGTH).filter(|_| !redirects);
            let size = answer.header(http::LINKED_SIZE).or_else(own_size).and_then(|s| s.parse().ok());
            let size = size.ok_or_else(|| bad("it does not tell the file's length"))?;
            Ok(Blob { file: file.to_owned(), etag, size })
        })
    }

    /// Checks that there is enough disk space for the missing files.
    fn check_room(&self, model: &ModelRef, blobs: &[Blob], watch: &mut Watch<'_>) -> Result<()> {
        if blobs.is_empty() {
            return Ok(());
        }
        let mut needed = 0u64;
        for blob in blobs {
            needed = needed.saturating_add(self.cache.missing_bytes(&model.repo, blob));
        }
        let path = self.cache.blobs(&model.repo);
        match blob::free_space(&path) {
            Some(free) if needed > free => Err(HubError::DiskFull { path, needed, free }),
            _ => tell(watch, Event::Missing { files: blobs.len(), bytes: needed }),
        }
    }

    fn fetch_blob(&self, target: &Target, blob: &Blob, watch: &mut Watch<'_>) -> Result<()> {
        let path = self.cache.blobs(target.repo).join(&blob.etag);
        let lock_path = self.cache.lock(target.repo, &blob.etag);
        let lock = BlobLock::take(&lock_path, || tell(watch, Event::Waiting { file: &blob.file }))?;
        download(&self.http, target, blob, &path, watch)?;
        drop(lock);
        self.cache.link(target.repo, target.revision, blob)
    }
}
