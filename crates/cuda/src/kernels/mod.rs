//! The kernels: their PTX, packed into the program, and each kernel's launch bounds and parameters.

mod packed;
mod table;

use tallow_core::{Error, Result};

pub(crate) use packed::images;

/// A kernel: its module, and its name there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Kernel {
    pub module: &'static str,
    pub name: &'static str,
}

/// The kernels of one file.
pub(crate) struct Module {
    pub name: &'static str,
    pub entries: &'static [Entry],
}

/// A kernel of a module.
pub(crate) struct Entry {
    pub name: &'static str,
    /// Bytes of its parameters.
    pub parameters: usize,
    /// Most threads of a CTA.
    pub threads: u32,
    /// Bytes of shared memory that it declares.
    pub shared: u32,
}

/// The module of other kernels for the weights that `products` is a module for: both are named after the form of the weights.
pub(crate) fn of_form(what: &str, products: &str) -> Option<&'static str> {
    let (_, form) = products.split_once('_')?;
    let is_it = |module: &&Module| module.name.split_once('_') == Some((what, form));
    table::MODULES.iter().find(is_it).map(|module| module.name)
}

impl Kernel {
    fn module(&self) -> Option<&'static Module> {
        table::MODULES.iter().find(|module| module.name == self.module)
    }

    /// True if its module has it.
    pub(crate) fn is_there(&self) -> bool {
        self.entry().is_ok()
    }

    /// Its launch bounds and parameters.
    pub(crate) fn entry(&self) -> Result<&'static Entry> {
        let entry =
            self.module().and_then(|module| module.entries.iter().find(|entry| entry.name == self.name));
        entry.ok_or_else(|| self.missing())
    }

    pub(crate) fn missing(&self) -> Error {
        let why = format!("this program has no kernel called {}/{}", self.module, self.name);
        Error::Device { device: "CUDA".into(), why }
    }
}
