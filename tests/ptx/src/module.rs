//! Modules and their kernels.

use std::sync::Arc;

use crate::code::Lowered;
use crate::fault::Error;
use crate::lower::lower;
use crate::parse::parse;

/// A module: the kernels of one PTX file.
#[derive(Debug)]
pub struct Module {
    kernels: Vec<Arc<Kernel>>,
}

/// A kernel, ready to be launched.
#[derive(Debug)]
pub struct Kernel {
    name: String,
    pub(crate) text: Arc<str>,
    pub(crate) lowered: Lowered,
    pub(crate) parameter_bytes: usize,
    /// Bytes of shared memory that it declares.
    pub(crate) shared: usize,
    pub(crate) has_dynamic_shared: bool,
    pub(crate) max_threads: Option<usize>,
}

impl Module {
    /// Reads the PTX of a module. All of it must be understood.
    pub fn new(text: &str) -> Result<Module, Error> {
        let tree = parse(text)?;
        let text: Arc<str> = text.into();
        let kernel = |entry: &crate::parse::Entry<'_>| {
            Ok(Arc::new(Kernel {
                name: entry.name.into(),
                text: text.clone(),
                lowered: lower(entry)?,
                parameter_bytes: entry.params.last().map_or(0, |(_, place)| place.end),
                shared: entry.shared.iter().map(|(_, place)| place.end).max().unwrap_or(0),
                has_dynamic_shared: entry.dynamic_shared.is_some(),
                max_threads: entry.max_threads,
            }))
        };
        Ok(Module { kernels: tree.entries.iter().map(kernel).collect::<Result<_, Error>>()? })
    }

    /// The kernel of this name.
    pub fn kernel(&self, name: &str) -> Result<Arc<Kernel>, Error> {
        let kernel = self.kernels.iter().find(|kernel| kernel.name == name);
        kernel.cloned().ok_or_else(|| Error::NoKernel(name.into()))
    }

    /// All kernels.
    pub fn kernels(&self) -> &[Arc<Kernel>] {
        &self.kernels
    }
}

impl Kernel {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of its parameters.
    pub fn parameter_bytes(&self) -> usize {
        self.parameter_bytes
    }

    /// Bytes of shared memory that it declares.
    pub fn shared(&self) -> usize {
        self.shared
    }

    /// Most threads of a CTA, if it says so.
    pub fn max_threads(&self) -> Option<usize> {
        self.max_threads
    }
}
