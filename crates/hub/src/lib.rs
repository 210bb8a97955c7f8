//! Downloads models from the Hugging Face hub into the on-disk cache that other programs share.
//!
//! [`Hub::pull`] downloads a model; [`Cache::find`] looks one up offline; [`Cache::list`] and [`Cache::remove`] manage
//! the cache. It has the [hub's own layout](https://huggingface.co/docs/hub/local-cache), so other programs find what
//! this one downloaded, and the reverse:
//!
//! ```text
//! models--org--name/
//!   blobs/<etag>                 a file's content, named by its hash; `<etag>.incomplete` while downloading
//!   snapshots/<commit>/<file>    a relative link to its content
//!   refs/<branch or tag>         its commit at the last pull
//! .locks/models--org--name/<etag>.lock
//! ```
//!
//! Nothing here prints or reads the environment: settings come in as [`Settings`], progress is reported as [`Event`]s
//! to a [`Watch`], which may end the pull.

mod aliases;
mod blob;
mod cache;
mod download;
mod error;
mod http;
mod hub;
mod name;
mod pick;
mod pieces;
mod quant;
mod repo;
mod settings;

pub use aliases::{ALIASES, Alias, is_alias, search};
pub use cache::{Cache, CachedModel, Removed, Snapshot};
pub use error::HubError;
pub use hub::{Hub, Match};
pub use name::ModelRef;
pub use repo::{NameError, RepoName};
pub use settings::{Event, Names, Ranges, Settings, Timing, Watch};
