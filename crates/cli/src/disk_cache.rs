//! The disk cache of `serve`: pages of the prefix cache that the next start finds again.

use std::path::PathBuf;
use std::time::Instant;

use tallow_checkpoint::digest;
use tallow_checkpoint::map::Mapping;
use tallow_engine::cache_tier::{DiskCacheSettings, TierError};
use tallow_engine::handle::EngineHandle;
use tallow_models::Model;

use crate::devices::candidates;
use crate::settings::{EngineConfig, Sources};
use crate::{Failed, build, env};

/// Folder of the pages, and how many bytes they may take.
#[derive(Clone, Debug)]
pub(crate) struct DiskCache {
    folder: PathBuf,
    bytes: u64,
}

impl DiskCache {
    /// As the flags or other settings say; `None` without a folder.
    pub(crate) fn new(
        sources: &Sources,
        folder: Option<String>,
        mib: Option<u64>,
    ) -> Result<Option<DiskCache>, Failed> {
        let mib = sources.get("cache-disk-size", mib, 8192)?.value;
        let folder = sources.find("cache-disk", folder)?;
        Ok(folder.map(|folder| DiskCache {
            folder: env::expand(&folder.value),
            bytes: mib.saturating_mul(1 << 20),
        }))
    }

    /// Has an engine keep its pages there. A folder that another server uses is reported, and not used.
    pub(crate) fn start(
        self,
        handle: &EngineHandle,
        model: &Model,
        config: &EngineConfig,
        api_keys: &[String],
    ) -> Result<(), Failed> {
        let identity = identity(model, config, api_keys)?;
        match handle.cache_on_disk(DiskCacheSettings { folder: self.folder, bytes: self.bytes, identity }) {
            Err(why @ TierError::InUse(_)) => {
                tracing::warn!("--cache-disk: {why}; this one keeps no pages on disk");
                Ok(())
            }
            started => started.map_err(|why| Failed::new(format!("--cache-disk: {why}"))),
        }
    }
}

/// All that pages depend on: model, program, arithmetic, drivers, and who shares them. By their content, not their names: a
/// model that was exchanged for another of the same name has other pages.
fn identity(model: &Model, config: &EngineConfig, api_keys: &[String]) -> Result<Vec<Vec<u8>>, Failed> {
    let begun = Instant::now();
    let program = Mapping::open(&env::program()?)?;
    let program = digest::of_files(&[&program])?;
    let weights = model.checkpoint.digest()?;
    tracing::debug!("digests of the model and the program took {:?}", begun.elapsed());
    let drivers = candidates(config.device.value)?.0;
    let drivers = drivers.iter().flat_map(|device| device.info().facts());
    let drivers: Vec<_> = drivers.filter(|(name, _)| *name == "driver").collect();
    let (kv, isa, arithmetic) = (config.kv.value, config.isa.value, config.arithmetic.value);
    let parts = [
        format!("{} {drivers:?} {kv} {isa} {arithmetic:?}", build::VERSION),
        // What was read from the settings; and weights may be quantized as they are loaded.
        format!("{:?} {:?}", model.spec, model.recipe),
        // Salts number the keys: with others, or in another order, they would be of other callers.
        format!("{api_keys:?}"),
    ];
    Ok([program.to_vec(), weights.to_vec()].into_iter().chain(parts.map(String::into_bytes)).collect())
}
