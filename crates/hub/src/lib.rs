//! Models from the Hugging Face hub, and the cache on disk that other programs share.
//!
//! [`Hub::pull`] fetches a model; [`Cache::find`] finds one without a network; [`Cache::list`] and [`Cache::remove`]
//! keep house. The cache has the [hub's own layout](https://huggingface.co/docs/hub/local-cache), so what one program
//! fetched the others find:
//!
//! ```text
//! models--org--name/
//!   blobs/<etag>                 a file's content, named by its hash; `<etag>.incomplete` while it arrives
//!   snapshots/<commit>/<file>    a relative link to its content
//!   refs/<branch or tag>         the commit it stood for when last asked
//! .locks/models--org--name/<etag>.lock
//! ```
//!
//! Nothing here prints or reads the environment: settings come in as [`Settings`], progress goes out as [`Event`]s.

mod aliases;
mod cache;
mod download;
mod error;
mod http;
mod hub;
mod name;
mod pick;
mod pieces;

pub use aliases::{ALIASES, Alias, is_alias, search};
pub use cache::{Cache, CachedModel, Removed, Snapshot};
pub use error::HubError;
pub use hub::{Event, Hub, Match, Names, Ranges, Settings, Timing};
pub use name::{ModelRef, RepoName};
