//! Kernels on the device: a module is compiled by the driver when one of its kernels is first launched.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CString, c_int, c_void};
use std::ptr::null_mut;
use std::rc::Rc;

use tallow_core::{Error, Result};

use super::context::Context;
use crate::driver::{Handle, code};
use crate::kernels::Kernel;

/// Shared memory that a kernel may be launched with unless more is asked for, in bytes.
const SHARED: u32 = 48 << 10;
/// Room for what the driver's compiler says.
const LOG: usize = 4 << 10;

/// A kernel on the device, and the shared memory that it may have.
#[derive(Clone, Copy)]
struct Function {
    handle: Handle,
    shared: u32,
}

pub(super) struct Modules {
    context: Rc<Context>,
    loaded: RefCell<HashMap<&'static str, Handle>>,
    functions: RefCell<HashMap<Kernel, Function>>,
}

impl Modules {
    pub(super) fn new(context: Rc<Context>) -> Modules {
        Modules { context, loaded: RefCell::default(), functions: RefCell::default() }
    }

    /// A kernel that may be launched with so much shared memory.
    pub(super) fn function(&self, kernel: Kernel, shared: u32) -> Result<Handle> {
        let known = self.functions.borrow().get(&kernel).copied();
        let function = match known {
            Some(function) => function,
            None => {
                Function { handle: self.find(kernel)?, shared: SHARED.saturating_sub(kernel.entry()?.shared) }
            }
        };
        let most = function.shared.max(shared);
        if most > function.shared {
            self.allow(function.handle, most)?;
        }
        if known.is_none() || most > function.shared {
            self.functions.borrow_mut().insert(kernel, Function { shared: most, ..function });
        }
        Ok(function.handle)
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

    fn load(&self, kernel: Kernel) -> Result<Handle> {
        const ERROR_LOG: c_int = 5;
        const ERROR_LOG_BYTES: c_int = 6;
        let ptx = text(kernel.ptx()?)?;
        let (mut module, mut log) = (null_mut(), vec![0u8; LOG]);
        let mut options = [ERROR_LOG, ERROR_LOG_BYTES];
        // The driver takes numbers in place of pointers; this one becomes how much it wrote.
        let mut values = [log.as_mut_ptr().cast::<c_void>(), (LOG - 1) as *mut c_void];
        // SAFETY: all places are valid during the call: the text ends with a zero, and the log has the room that is given.
        let has_room = self.context.ask_unless(code::OUT_OF_MEMORY, |driver| unsafe {
            let count = options.len() as u32;
            driver.module_load(
                &mut module,
                ptx.as_ptr().cast(),
                count,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        });
        let has_room = has_room.map_err(|e| match e {
            Error::Device { why, .. } => {
                let said = log.split(|byte| *byte == 0).next().unwrap_or_default();
                let said = String::from_utf8_lossy(said).split_whitespace().collect::<Vec<_>>().join(" ");
                self.failed(format!("the module {} cannot be loaded: {why}: {said}", kernel.module))
            }
            other => other,
        })?;
        if !has_room {
            return Err(self.context.out_of_memory(ptx.count_bytes() as u64));
        }
        self.loaded.borrow_mut().insert(kernel.module, module);
        Ok(module)
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
