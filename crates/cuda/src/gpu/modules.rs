//! Kernels on the device: a module is compiled by the driver when one of its kernels is first launched.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CString, c_int, c_void};
use std::hash::{BuildHasherDefault, Hasher};
use std::ptr::null_mut;
use std::rc::Rc;

use tallow_core::{Error, Result};

use super::context::Context;
use crate::driver::{Handle, code};
use crate::kernels::{Entry, Kernel, images};

/// Shared memory that a kernel may be launched with unless more is asked for, in bytes.
const SHARED: u32 = 48 << 10;
/// Room for what the driver's compiler says.
const LOG: usize = 4 << 10;

/// A kernel on the device.
#[derive(Clone, Copy)]
pub(super) struct Function {
    pub handle: Handle,
    pub entry: &'static Entry,
    /// The shared memory that it may have beside what it declares.
    shared: u32,
}

/// A kernel by where its names lie, so that a launch does not read them.
#[derive(PartialEq, Eq, Hash)]
struct Names(*const str, *const str);

impl Names {
    fn of(kernel: Kernel) -> Names {
        Names(kernel.module, kernel.name)
    }
}

pub(super) struct Modules {
    context: Rc<Context>,
    /// The device's compute capability.
    capability: (u32, u32),
    loaded: RefCell<HashMap<&'static str, Handle>>,
    functions: RefCell<HashMap<Names, Function, BuildHasherDefault<Addresses>>>,
}

/// A hash of addresses.
#[derive(Default)]
struct Addresses(u64);

impl Hasher for Addresses {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_usize(usize::from(*byte)));
    }

    fn write_usize(&mut self, at: usize) {
        // Fibonacci hashing: the upper bits, which the table looks at first, depend on all of them.
        self.0 = (self.0.rotate_left(5) ^ at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl Modules {
    pub(super) fn new(context: Rc<Context>, capability: (u32, u32)) -> Modules {
        Modules { context, capability, loaded: RefCell::default(), functions: RefCell::default() }
    }

    /// A kernel that may be launched with so much shared memory.
    pub(super) fn function(&self, kernel: Kernel, shared: u32) -> Result<Function> {
        let known = self.functions.borrow().get(&Names::of(kernel)).copied();
        if let Some(function) = known
            && shared <= function.shared
        {
            return Ok(function);
        }
        let mut function = match known {
            Some(function) => function,
            None => {
                let entry = kernel.entry()?;
                Function { handle: self.find(kernel)?, entry, shared: SHARED.saturating_sub(entry.shared) }
            }
        };
        if shared > function.shared {
            self.allow(function.handle, shared)?;
            function.shared = shared;
        }
        self.functions.borrow_mut().insert(Names::of(kernel), function);
        Ok(function)
    }

    fn allow(&self, function: Handle, shared: u32) -> Result<()> {
        const MOST_SHARED: c_int = 8;
        // SAFETY: the function's module is loaded.
        self.context.ask(|driver| unsafe { driver.function_set(function, MOST_SHARED, shared as c_int) })
    }

    fn find(&self, kernel: Kernel) -> Result<Handle> {
        let loaded = self.loaded.borrow().get(kernel.module).copied();
        let module = match loaded {
            Some(module) => module,
            None => self.load(kernel)?,
        };
        let name = text(kernel.name)?;
        let mut function = null_mut();
        // SAFETY: the place is valid during the call, the module is loaded, and the name ends with a zero.
        let has = self.context.ask_unless(code::NOT_FOUND, |driver| unsafe {
            driver.module_function(&mut function, module, name.as_ptr())
        })?;
        let lacks =
            || self.failed(format!("the module {} has no kernel called {}", kernel.module, kernel.name));
        has.then_some(function).ok_or_else(lacks)
    }

    /// Loads a kernel's module.
    fn load(&self, kernel: Kernel) -> Result<Handle> {
        let images = images(kernel.module, self.capability);
        let module = self.load_first(kernel.module, images)?.ok_or_else(|| kernel.missing())?;
        self.loaded.borrow_mut().insert(kernel.module, module);
        Ok(module)
    }

    /// Loads the first of a module's images that the driver takes: a cubin may be of no use to a newer one. None if there is none.
    fn load_first(&self, name: &str, images: impl Iterator<Item = Vec<u8>>) -> Result<Option<Handle>> {
        let mut refused = None;
        for image in images {
            match self.load_image(name, &image) {
                Err(error @ Error::Device { .. }) => refused = Some(error),
                done => return done.map(Some),
            }
        }
        refused.map_or(Ok(None), Err)
    }

    /// Loads PTX, which a zero ends, or a cubin.
    fn load_image(&self, name: &str, image: &[u8]) -> Result<Handle> {
        const ERROR_LOG: c_int = 5;
        const ERROR_LOG_BYTES: c_int = 6;
        let (mut module, mut log) = (null_mut(), vec![0u8; LOG]);
        let mut options = [ERROR_LOG, ERROR_LOG_BYTES];
        // The driver takes numbers in place of pointers; this one becomes how much it wrote.
        let mut values = [log.as_mut_ptr().cast::<c_void>(), (LOG - 1) as *mut c_void];
        // SAFETY: all places are valid during the call: the image ends with a zero, and the log has the room that is given.
        let has_room = self.context.ask_unless(code::OUT_OF_MEMORY, |driver| unsafe {
            let count = options.len() as u32;
            driver.module_load(
                &mut module,
                image.as_ptr().cast(),
                count,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        });
        let has_room = has_room.map_err(|e| match e {
            Error::Device { why, .. } => {
                let said = log.split(|byte| *byte == 0).next().unwrap_or_default();
                let said = String::from_utf8_lossy(said).split_whitespace().collect::<Vec<_>>().join(" ");
                self.failed(format!("the module {name} cannot be loaded: {why}: {said}"))
            }
            other => other,
        })?;
        has_room.then_some(module).ok_or_else(|| self.context.out_of_memory(image.len() as u64))
    }

    fn failed(&self, why: String) -> Error {
        Error::Device { device: self.context.label().to_owned(), why }
    }
}

/// A text of ours as C has it.
fn text(of: &str) -> Result<CString> {
    let why = "a kernel's text has a zero in it".to_owned();
    CString::new(of).map_err(|_| Error::Device { device: "CUDA".into(), why })
}

impl Drop for Modules {
    fn drop(&mut self) {
        // Kernels may still run.
        let _ = self.context.wait();
        for (_, module) in self.loaded.borrow_mut().drain() {
            // SAFETY: it was loaded once and is unloaded once, and nothing of it runs any more.
            let _ = self.context.ask(|driver| unsafe { driver.module_unload(module) });
        }
    }
}

#[cfg(test)]
mod tests {
    use tallow_ptx::mock::Machine;

    use super::*;

    #[test]
    fn of_what_there_is_of_a_module_the_driver_takes_the_first_that_it_can() {
        let found = crate::tests::devices(Machine::default()).unwrap().remove(0);
        let modules = Modules::new(Rc::new(Context::open(&found).unwrap()), (8, 0));
        let ptx = images("rope", (8, 0)).next().unwrap();
        let cubin = b"\x7fELF of another device\0".to_vec();
        let module = modules.load_first("rope", [cubin.clone(), ptx].into_iter()).unwrap().unwrap();
        modules.loaded.borrow_mut().insert("rope", module);
        let refused = modules.load_first("rope", [cubin].into_iter()).unwrap_err().to_string();
        assert!(refused.contains("the module rope cannot be loaded"), "{refused}");
        assert!(modules.load_first("nothing", std::iter::empty()).unwrap().is_none());
    }
}
