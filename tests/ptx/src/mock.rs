//! A driver over the interpreter: functions with the names and the types of NVIDIA's, for tests of what calls them.
//!
//! Each thread has a machine of its own, whose devices are chosen by [`set`], so that tests run side by side. Work is done when it
//! is asked for. What kernels do that has no defined result, the driver reports as a GPU would, by an error that the context does not
//! survive; [`last_fault`] says what it was.

mod calls;
mod functions;
mod graphs;
mod script;

use std::alloc::Layout;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use crate::device::Device;
use crate::fault::Error;
use crate::launch::Launch;
use crate::module::{Kernel, Module};

pub use functions::symbol;
use graphs::Graphs;
use script::{Order, Script};

/// A machine with NVIDIA's driver.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Its devices.
    pub devices: Vec<Gpu>,
    /// The newest version of CUDA that the driver knows: 12040 is 12.4.
    pub driver_version: i32,
    /// Calls that fail: the function, which of its calls from now on (the first is 1), and what it returns.
    pub fail: Vec<(&'static str, u64, i32)>,
    /// Functions that the driver's library lacks.
    pub lacks: Vec<&'static str>,
    /// True if kernels are executed and memory is there. Otherwise a machine shows what the host does: work is over when it is asked
    /// for, and what is read is zero.
    pub computes: bool,
    /// A kernel that never ends.
    pub endless: Option<&'static str>,
    /// Whether memory that is allocated holds zeros. Otherwise it holds nothing, and to read it is a fault.
    pub zeroes: bool,
}

/// A device.
#[derive(Clone, Debug)]
pub struct Gpu {
    /// Its name.
    pub name: String,
    /// Its compute capability.
    pub capability: (u32, u32),
    /// Bytes of its memory.
    pub memory: u64,
    /// Most shared memory of a CTA, in bytes.
    pub shared_memory: u32,
    /// Identifies it.
    pub uuid: [u8; 16],
    /// Its place on the bus.
    pub pci: String,
    /// Compute mode: 0 by default, 2 for nobody, 3 for one process at a time.
    pub compute_mode: i32,
}

impl Default for Gpu {
    /// As little as a device may have that the kernels are for.
    fn default() -> Gpu {
        Gpu {
            name: "interpreter".into(),
            capability: (8, 0),
            memory: 16 << 30,
            shared_memory: 99 << 10,
            uuid: *b"interpreter no 0",
            pci: "0000:01:00.0".into(),
            compute_mode: 0,
        }
    }
}

impl Default for Machine {
    fn default() -> Machine {
        Machine {
            devices: vec![Gpu::default()],
            driver_version: 12_000,
            fail: Vec::new(),
            lacks: Vec::new(),
            computes: true,
            endless: None,
            zeroes: false,
        }
    }
}

impl Machine {
    /// What a thread has until it is given another. For programs that load `library`: `MOCK_CUDA_DEVICES` counts the devices,
    /// `MOCK_CUDA_CAPABILITY` is theirs, as in 75 for 7.5, `MOCK_CUDA_UUID` the first one's, in hexadecimal digits, and
    /// `MOCK_CUDA_VERSION` the driver's; with `MOCK_CUDA_COMPUTES=0` nothing is computed. `CUDA_VISIBLE_DEVICES` chooses among the
    /// devices, as it does for NVIDIA's driver, and `MOCK_CUDA_SCRIPT` names a file of [`Order`]s.
    fn of_environment() -> Machine {
        let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
        let (mut gpu, machine) = (Gpu::default(), Machine::default());
        if let Some(capability) = number("MOCK_CUDA_CAPABILITY") {
            gpu.capability = (capability / 10, capability % 10);
        }
        let count = number("MOCK_CUDA_DEVICES").unwrap_or(1) as usize;
        let mut devices: Vec<Gpu> = (0..count).map(|index| gpu.at(index)).collect();
        if let (Some(first), Ok(uuid)) = (devices.first_mut(), std::env::var("MOCK_CUDA_UUID")) {
            first.uuid = u128::from_str_radix(&uuid, 16).map_or(first.uuid, u128::to_be_bytes);
        }
        if let Ok(visible) = std::env::var("CUDA_VISIBLE_DEVICES") {
            // What follows the first that names no device is not looked at.
            let chosen =
                visible.split(',').map_while(|index| devices.get(index.parse::<usize>().ok()?).cloned());
            devices = chosen.collect();
        }
        let driver_version =
            number("MOCK_CUDA_VERSION").map_or(machine.driver_version, |version| version as i32);
        let computes = number("MOCK_CUDA_COMPUTES") != Some(0);
        // Programs measure steps on caches that nobody wrote.
        Machine { devices, driver_version, computes, zeroes: true, ..machine }
    }
}

impl Gpu {
    /// The same at another place of the machine.
    fn at(&self, index: usize) -> Gpu {
        let mut gpu = self.clone();
        gpu.uuid[15] = b'0' + index as u8;
        gpu.pci = format!("0000:{:02x}:00.0", index + 1);
        gpu
    }
}

/// Makes this the thread's machine, on which nothing has happened. What the thread had of the one before is invalid.
pub fn set(machine: Machine) {
    STATE.with(|state| *state.borrow_mut() = State { machine, ..State::default() });
}

/// Decides in which order the CTAs and warps of launches are executed from now on.
pub fn seed(seed: u64) {
    STATE.with(|state| state.borrow_mut().seed = seed);
}

/// Other programs have so many bytes of each device from now on.
pub fn others_take(bytes: u64) {
    STATE.with(|state| state.borrow_mut().taken = bytes);
}

/// What the last call was about that failed for more than its code says: a kernel that went astray, PTX that is not understood, a
/// transfer that leaves its memory.
pub fn last_fault() -> Option<String> {
    STATE.with(|state| state.borrow().fault.clone())
}

/// How often a function was called.
pub fn calls(name: &str) -> u64 {
    STATE.with(|state| {
        let state = state.borrow();
        state.calls.iter().filter(|(called, _)| *called == name).map(|(_, times)| times).sum()
    })
}

/// Result codes of the driver.
mod code {
    use std::ffi::c_int;

    pub(super) const INVALID_VALUE: c_int = 1;
    pub(super) const OUT_OF_MEMORY: c_int = 2;
    pub(super) const NOT_INITIALIZED: c_int = 3;
    pub(super) const NO_DEVICE: c_int = 100;
    pub(super) const INVALID_DEVICE: c_int = 101;
    pub(super) const INVALID_IMAGE: c_int = 200;
    pub(super) const INVALID_CONTEXT: c_int = 201;
    pub(super) const INVALID_PTX: c_int = 218;
    pub(super) const INVALID_HANDLE: c_int = 400;
    pub(super) const ILLEGAL_STATE: c_int = 401;
    pub(super) const NOT_FOUND: c_int = 500;
    pub(super) const NOT_READY: c_int = 600;
    pub(super) const ILLEGAL_ADDRESS: c_int = 700;
    pub(super) const CAPTURE_UNSUPPORTED: c_int = 900;
    pub(super) const CAPTURE_INVALIDATED: c_int = 901;
    pub(super) const CAPTURED_EVENT: c_int = 907;
    pub(super) const UNKNOWN: c_int = 999;

    /// Whether a context does not survive it.
    pub(super) fn is_sticky(code: c_int) -> bool {
        matches!(code, 214 | 220 | 700 | 702 | 710 | 714..=719)
    }
}

/// Result of a function.
type Outcome = Result<(), c_int>;

/// Most instructions of a warp: no kernel of ours needs as many.
const LIMIT: u64 = 1 << 28;
/// Shared memory that a launch may ask for before its kernel is allowed more.
const SHARED: u32 = 48 << 10;
/// Most CTAs along the second and the third axis.
const MOST_CTAS: u32 = 65_535;

thread_local! {
    static STATE: RefCell<State> = RefCell::new(State {
        machine: Machine::of_environment(),
        script: Script::of_environment(),
        ..State::default()
    });
}

/// Counters of the thread's machine.
#[derive(Default)]
struct State {
    machine: Machine,
    /// Events by the file that a program's tests write, if there is one.
    script: Option<Script>,
    /// Bytes of each device that other programs have.
    taken: u64,
    /// Bytes of the largest piece of memory that is free, if it is in pieces.
    largest: Option<u64>,
    is_started: bool,
    /// How often each function was called, in the order in which they first were.
    calls: Vec<(&'static str, u64)>,
    /// The devices' primary contexts.
    contexts: BTreeMap<usize, Context>,
    /// The device whose context is the thread's.
    current: Option<usize>,
    /// Pinned memory, by its address.
    pinned: BTreeMap<usize, Layout>,
    handles: usize,
    seed: u64,
    launches: u64,
    fault: Option<String>,
}

/// A device's primary context, and what lives in it.
#[derive(Default)]
struct Context {
    handle: usize,
    holders: u32,
    device: Device,
    /// Bytes of each allocation.
    allocations: BTreeMap<u64, u64>,
    streams: BTreeSet<usize>,
    events: BTreeMap<usize, Event>,
    modules: BTreeMap<usize, Module>,
    functions: BTreeMap<usize, Function>,
    graphs: Graphs,
    /// True if a kernel was launched that never ends.
    hangs: bool,
    /// The sticky error, if there was one.
    sticky: Option<c_int>,
}

#[derive(Clone, Copy)]
struct Event {
    takes_time: bool,
    recorded: Option<Instant>,
    /// True if it is behind a kernel that never ends.
    hangs: bool,
    /// True if a capture has named it, so that it says nothing of the device.
    is_captured: bool,
}

struct Function {
    module: usize,
    kernel: Arc<Kernel>,
    /// Most shared memory of a launch beside what the kernel declares.
    shared: u32,
}

/// Work for a stream.
#[derive(Clone)]
enum Work {
    Upload {
        to: u64,
        from: *const u8,
        bytes: usize,
    },
    Download {
        to: *mut u8,
        from: u64,
        bytes: usize,
    },
    Copy {
        to: u64,
        from: u64,
        bytes: usize,
    },
    Fill {
        to: u64,
        value: u8,
        bytes: usize,
    },
    Launch {
        module: usize,
        kernel: Arc<Kernel>,
        grid: [u32; 3],
        block: [u32; 3],
        shared: u32,
        parameters: Vec<u8>,
    },
    Record(usize),
}

impl State {
    /// A function is called: counts it, and fails if it is meant to.
    fn enter(&mut self, name: &'static str) -> Outcome {
        // By where the name lies, which is faster than to compare it.
        let place = self.calls.iter().position(|(called, _)| std::ptr::eq(*called, name));
        let place = place.unwrap_or_else(|| {
            self.calls.push((name, 0));
            self.calls.len() - 1
        });
        self.calls[place].1 += 1;
        let call = (name, self.calls[place].1);
        let planned = self.machine.fail.iter().find(|(what, nth, _)| (*what, *nth) == call);
        let planned = planned.map(|(_, _, code)| *code);
        let Some(code) = planned.or_else(|| self.follow_script(name)) else { return Ok(()) };
        if code::is_sticky(code)
            && let Some(context) = self.current.and_then(|index| self.contexts.get_mut(&index))
        {
            context.sticky = Some(code);
        }
        Err(code)
    }

    /// Does what the script says now. Returns what it has the function return.
    fn follow_script(&mut self, name: &str) -> Option<c_int> {
        let orders = self.script.as_ref()?.orders();
        let (mut fails, was_taken) = (None, std::mem::take(&mut self.taken));
        self.largest = None;
        for order in orders {
            match order {
                Order::Fail { function, code } if function == name => fails = Some(code),
                Order::Slow { function, time } if function == name => std::thread::sleep(time),
                Order::Take(bytes) => self.taken = bytes,
                Order::Largest(bytes) => self.largest = Some(bytes),
                Order::Fill if was_taken > 0 => self.taken = was_taken,
                Order::Fill => self.taken = self.current.map_or(0, |index| self.free(index)),
                Order::Fail { .. } | Order::Slow { .. } => {}
            }
        }
        fails
    }

    /// Bytes of a device that nobody has.
    fn free(&self, index: usize) -> u64 {
        let own = self.contexts.get(&index).map_or(0, |context| context.allocations.values().sum::<u64>());
        self.machine.devices.get(index).map_or(0, |gpu| gpu.memory.saturating_sub(own + self.taken))
    }

    fn started(&self) -> Outcome {
        if self.is_started { Ok(()) } else { Err(code::NOT_INITIALIZED) }
    }

    /// A device, by its number.
    fn gpu(&self, device: c_int) -> Result<(usize, &Gpu), c_int> {
        self.started()?;
        let index = usize::try_from(device).map_err(|_| code::INVALID_DEVICE)?;
        self.machine.devices.get(index).map(|gpu| (index, gpu)).ok_or(code::INVALID_DEVICE)
    }

    fn handle(&mut self) -> usize {
        self.handles += 1;
        self.handles << 8
    }

    /// The thread's context, with the device that it is of.
    fn context(&mut self) -> Result<(&mut Context, &Gpu), c_int> {
        self.started()?;
        let index = self.current.ok_or(code::INVALID_CONTEXT)?;
        let context = self.contexts.get_mut(&index).ok_or(code::INVALID_CONTEXT)?;
        match context.sticky {
            Some(code) => Err(code),
            None => Ok((context, &self.machine.devices[index])),
        }
    }

    fn retain(&mut self, index: usize) -> usize {
        let handle = self.handle();
        let context = self.contexts.entry(index).or_insert(Context { handle, ..Context::default() });
        context.holders += 1;
        context.handle
    }

    /// The last who releases it destroys it.
    fn release(&mut self, index: usize) -> Outcome {
        let context = self.contexts.get_mut(&index).ok_or(code::INVALID_CONTEXT)?;
        context.holders -= 1;
        if context.holders == 0 {
            self.contexts.remove(&index);
        }
        Ok(())
    }

    fn alloc(&mut self, bytes: usize) -> Result<u64, c_int> {
        let Machine { zeroes, computes, .. } = self.machine;
        let free = self.current.map_or(0, |index| self.free(index));
        let largest = self.largest.unwrap_or(u64::MAX);
        let (context, _) = self.context()?;
        context.graphs.may_wait()?;
        if bytes == 0 {
            return Err(code::INVALID_VALUE);
        }
        if bytes as u64 > free.min(largest) {
            return Err(code::OUT_OF_MEMORY);
        }
        let address = context.device.alloc(if computes { bytes } else { 0 });
        context.allocations.insert(address, bytes as u64);
        if zeroes && computes {
            let filled = context.device.fill(address, 0, bytes);
            filled.map_err(|e| self.note(&e))?;
        }
        Ok(address)
    }

    /// Work for a stream. It is done at once, unless the stream captures.
    fn enqueue(&mut self, stream: usize, work: &Work) -> Outcome {
        let (context, _) = self.context()?;
        // Zero is the stream of those who have none of their own.
        if stream != 0 && !context.streams.contains(&stream) {
            return Err(code::INVALID_HANDLE);
        }
        if !context.graphs.takes(stream, work)? {
            return self.perform(work);
        }
        if let Work::Record(event) = work {
            context.events.get_mut(event).ok_or(code::INVALID_HANDLE)?.is_captured = true;
        }
        Ok(())
    }

    fn perform(&mut self, work: &Work) -> Outcome {
        let seed = self.seed.wrapping_add(self.launches);
        let (computes, endless) = (self.machine.computes, self.machine.endless);
        let (context, _) = self.context()?;
        context.hangs |= matches!(work, Work::Launch { kernel, .. } if endless == Some(kernel.name()));
        let (device, hangs) = (&mut context.device, context.hangs);
        let done = match *work {
            Work::Record(event) => {
                let event = context.events.get_mut(&event).ok_or(code::INVALID_HANDLE)?;
                *event = Event { recorded: Some(Instant::now()), hangs, is_captured: false, ..*event };
                Ok(())
            }
            Work::Download { to, bytes, .. } if !computes => {
                // SAFETY: the caller of the copy gives so many bytes, which nobody else uses meanwhile.
                unsafe { to.write_bytes(0, bytes) };
                Ok(())
            }
            // It comes behind what never ends, or shows nothing.
            _ if hangs || !computes => Ok(()),
            Work::Upload { to, from, bytes } => {
                // SAFETY: the caller of the copy gives so many bytes, which live until the stream has done the copy.
                device.write(to, unsafe { std::slice::from_raw_parts(from, bytes) })
            }
            Work::Download { to, from, bytes } => {
                // SAFETY: as above, and nobody else uses them meanwhile.
                device.read(from, unsafe { std::slice::from_raw_parts_mut(to, bytes) })
            }
            Work::Copy { to, from, bytes } if to < from + bytes as u64 && from < to + bytes as u64 => {
                self.fault = Some(format!("a copy of {bytes} bytes from {from:#x} to {to:#x} overlaps"));
                return Err(code::INVALID_VALUE);
            }
            Work::Copy { to, from, bytes } => device.copy(to, from, bytes),
            Work::Fill { to, value, bytes } => device.fill(to, value, bytes),
            Work::Launch { ref kernel, grid, block, shared, ref parameters, .. } => {
                let extent = Launch { grid, block, shared: shared as usize, parameters, seed, limit: LIMIT };
                let ran = catch_unwind(AssertUnwindSafe(|| device.launch(kernel, &extent).map(drop)));
                self.launches += 1;
                // The panic has been printed; it must not reach the caller, who may not be Rust.
                ran.map_err(|_| code::UNKNOWN)?
            }
        };
        done.map_err(|e| self.note(&e))
    }

    /// Keeps an error's text. Returns its code.
    fn note(&mut self, e: &Error) -> c_int {
        self.fault = Some(e.to_string());
        // Who only loads `library` cannot ask for it.
        if std::env::var_os("MOCK_CUDA_TELLS").is_some() {
            eprintln!("{e}");
        }
        if !matches!(e, Error::Fault(_)) {
            return code::INVALID_VALUE;
        }
        if let Some(context) = self.current.and_then(|index| self.contexts.get_mut(&index)) {
            context.sticky = Some(code::ILLEGAL_ADDRESS);
        }
        code::ILLEGAL_ADDRESS
    }

    fn load(&mut self, text: &str) -> Result<usize, String> {
        match Module::new(text) {
            Ok(module) => {
                let handle = self.handle();
                let (context, _) = self.context().map_err(|code| code.to_string())?;
                context.modules.insert(handle, module);
                Ok(handle)
            }
            Err(e) => {
                self.fault = Some(e.to_string());
                Err(e.to_string())
            }
        }
    }

    fn function(&mut self, module: usize, name: &str) -> Result<usize, c_int> {
        let handle = self.handle();
        let (context, _) = self.context()?;
        let kernel = context.modules.get(&module).ok_or(code::INVALID_HANDLE)?.kernel(name);
        let kernel = kernel.map_err(|_| code::NOT_FOUND)?;
        context.functions.insert(handle, Function { module, kernel, shared: SHARED });
        Ok(handle)
    }

    /// Launches a function as far as a driver lets it.
    fn launch(
        &mut self,
        function: usize,
        [grid, block]: [[u32; 3]; 2],
        shared: u32,
        stream: usize,
        parameters: &[u8],
    ) -> Outcome {
        let is_idle = !self.machine.computes && self.machine.endless.is_none();
        let (context, _) = self.context()?;
        let function = context.functions.get(&function).ok_or(code::INVALID_HANDLE)?;
        let fits = grid.iter().chain(&block).all(|n| *n > 0) && grid[1..].iter().all(|n| *n <= MOST_CTAS);
        if !fits || shared > function.shared {
            let what = format!("{grid:?} CTAs of {block:?} threads with {shared} bytes of shared memory");
            self.fault = Some(format!("a launch of {}: {what}", function.kernel.name()));
            return Err(code::INVALID_VALUE);
        }
        // What is not done is not copied: that would be counted as the host's work.
        if is_idle && context.streams.contains(&stream) && !context.graphs.captures(stream) {
            return Ok(());
        }
        let (module, kernel) = (function.module, function.kernel.clone());
        let parameters = parameters.to_vec();
        self.enqueue(stream, &Work::Launch { module, kernel, grid, block, shared, parameters })
    }
}
