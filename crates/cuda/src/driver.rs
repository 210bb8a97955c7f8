//! [`Driver`]: the functions of NVIDIA's driver that we call, in a table of our own.
//!
//! The library is loaded when the program runs, so that the program builds and starts without it. A function that it lacks is an
//! error with its name, never a crash; and tests put functions of their own in the table.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::NonNull;

use tallow_core::{Error, Result};

/// A context, stream, event, graph, module or function of the driver.
pub(crate) type Handle = *mut c_void;

/// A call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The driver's function.
    pub call: &'static CStr,
    /// Its result code.
    pub code: c_int,
}

/// The driver's codes that we tell apart from others.
pub(crate) mod code {
    use std::ffi::c_int;

    pub(crate) const OUT_OF_MEMORY: c_int = 2;
    pub(crate) const NO_DEVICE: c_int = 100;
    pub(crate) const NOT_FOUND: c_int = 500;
    pub(crate) const NOT_READY: c_int = 600;
    /// Driver parts of different versions, or a stub.
    pub(crate) const STUB: c_int = 34;
    pub(crate) const MISMATCH: c_int = 803;
    /// The links between a machine's GPUs are not configured yet.
    pub(crate) const NOT_READY_YET: c_int = 802;
    /// The system denies access to the device.
    pub(crate) const UNAVAILABLE: c_int = 46;
    pub(crate) const OPERATING_SYSTEM: c_int = 304;
    pub(crate) const NOT_PERMITTED: c_int = 800;
    pub(crate) const UNKNOWN: c_int = 999;
    /// After these nothing works in the context any more: kernels that went astray (700, 702, 710, 714 to 719), memory and links
    /// that broke (214, 220, 226), a context or a driver that is gone (4, 201, 709), and what the driver cannot explain.
    pub(crate) const LOST: [c_int; 16] =
        [700, 702, 710, 714, 715, 716, 717, 718, 719, 214, 220, 226, 4, 201, 709, UNKNOWN];
}

/// Attributes of devices.
pub(crate) mod attribute {
    use std::ffi::c_int;

    pub(crate) const MULTIPROCESSORS: c_int = 16;
    pub(crate) const INTEGRATED: c_int = 18;
    pub(crate) const COMPUTE_MODE: c_int = 20;
    pub(crate) const MAJOR: c_int = 75;
    pub(crate) const MINOR: c_int = 76;
    pub(crate) const SHARED_MEMORY: c_int = 97;
}

/// The oldest interface that we need: 12.0.
const OLDEST: c_int = 12_000;

/// Looks up a driver function by name.
pub(crate) type Lookup<'a> = &'a dyn Fn(&CStr) -> Option<NonNull<c_void>>;

/// Declares the table: a method for each function, which fails if the driver lacks it.
macro_rules! table {
    ($($need:ident $method:ident = $symbol:literal($($arg:ident: $of:ty),*);)*) => {
        /// The driver's functions.
        pub(crate) struct Driver {
            $($method: Option<unsafe extern "C" fn($($of),*) -> c_int>,)*
        }

        impl Driver {
            /// # Safety
            /// What `lookup` finds must be the driver's function of that name, or one of the same type.
            unsafe fn fill(lookup: Lookup<'_>) -> Driver {
                Driver {
                    $($method: lookup($symbol).map(|at| {
                        // SAFETY: it is a function of this type: what is declared here is what the driver's header declares, and
                        // the caller vouches for `lookup`.
                        unsafe { std::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn($($of),*) -> c_int>(at) }
                    }),)*
                }
            }

            /// The first function that is missing of those that we cannot do without.
            fn missing(&self) -> Option<&'static CStr> {
                $(if stringify!($need) == "needs" && self.$method.is_none() {
                    return Some($symbol);
                })*
                None
            }

            $(
                /// # Safety
                /// The arguments must be what the driver's documentation of this function asks for.
                #[allow(clippy::too_many_arguments, reason = "as many as the driver's function has")]
                pub(crate) unsafe fn $method(&self, $($arg: $of),*) -> std::result::Result<(), Failure> {
                    let failed = |code| Failure { call: $symbol, code };
                    let function = self.$method.ok_or(failed(code::NOT_FOUND))?;
                    // SAFETY: the caller vouches for the arguments.
                    match unsafe { function($($arg),*) } {
                        0 => Ok(()),
                        code => Err(failed(code)),
                    }
                }
            )*
        }
    };
}

table! {
    needs driver_version = c"cuDriverGetVersion"(version: *mut c_int);
    needs init = c"cuInit"(flags: c_uint);
    wants error_name = c"cuGetErrorName"(code: c_int, name: *mut *const c_char);
    wants error_string = c"cuGetErrorString"(code: c_int, words: *mut *const c_char);

    needs device_count = c"cuDeviceGetCount"(count: *mut c_int);
    needs device_get = c"cuDeviceGet"(device: *mut c_int, index: c_int);
    needs device_name = c"cuDeviceGetName"(name: *mut c_char, room: c_int, device: c_int);
    needs device_memory = c"cuDeviceTotalMem_v2"(bytes: *mut usize, device: c_int);
    needs device_attribute = c"cuDeviceGetAttribute"(value: *mut c_int, attribute: c_int, device: c_int);
    wants device_uuid = c"cuDeviceGetUuid_v2"(uuid: *mut [u8; 16], device: c_int);
    wants device_uuid_v1 = c"cuDeviceGetUuid"(uuid: *mut [u8; 16], device: c_int);
    wants device_pci = c"cuDeviceGetPCIBusId"(id: *mut c_char, room: c_int, device: c_int);

    needs context_retain = c"cuDevicePrimaryCtxRetain"(context: *mut Handle, device: c_int);
    needs context_release = c"cuDevicePrimaryCtxRelease_v2"(device: c_int);
    needs context_set = c"cuCtxSetCurrent"(context: Handle);
    needs memory_info = c"cuMemGetInfo_v2"(free: *mut usize, total: *mut usize);

    needs mem_alloc = c"cuMemAlloc_v2"(address: *mut u64, bytes: usize);
    needs mem_free = c"cuMemFree_v2"(address: u64);
    needs host_alloc = c"cuMemHostAlloc"(at: *mut *mut c_void, bytes: usize, flags: c_uint);
    needs host_free = c"cuMemFreeHost"(at: *mut c_void);
    needs copy_up = c"cuMemcpyHtoDAsync_v2"(to: u64, from: *const c_void, bytes: usize, stream: Handle);
    needs copy_down = c"cuMemcpyDtoHAsync_v2"(to: *mut c_void, from: u64, bytes: usize, stream: Handle);
    needs copy_within = c"cuMemcpyDtoDAsync_v2"(to: u64, from: u64, bytes: usize, stream: Handle);
    needs fill_bytes = c"cuMemsetD8Async"(to: u64, value: u8, bytes: usize, stream: Handle);

    needs stream_create = c"cuStreamCreate"(stream: *mut Handle, flags: c_uint);
    needs stream_destroy = c"cuStreamDestroy_v2"(stream: Handle);
    needs stream_query = c"cuStreamQuery"(stream: Handle);
    needs event_create = c"cuEventCreate"(event: *mut Handle, flags: c_uint);
    needs event_destroy = c"cuEventDestroy_v2"(event: Handle);
    needs event_record = c"cuEventRecord"(event: Handle, stream: Handle);
    needs event_query = c"cuEventQuery"(event: Handle);
    needs event_elapsed = c"cuEventElapsedTime"(milliseconds: *mut f32, from: Handle, to: Handle);

    wants stream_begin_capture = c"cuStreamBeginCapture_v2"(stream: Handle, mode: c_int);
    wants stream_end_capture = c"cuStreamEndCapture"(stream: Handle, graph: *mut Handle);
    wants graph_instantiate = c"cuGraphInstantiateWithFlags"(executable: *mut Handle, graph: Handle, flags: u64);
    wants graph_launch = c"cuGraphLaunch"(executable: Handle, stream: Handle);
    wants graph_exec_destroy = c"cuGraphExecDestroy"(executable: Handle);
    wants graph_destroy = c"cuGraphDestroy"(graph: Handle);

    needs module_load = c"cuModuleLoadDataEx"(
        module: *mut Handle, image: *const c_void, count: c_uint, options: *mut c_int, values: *mut *mut c_void
    );
    needs module_unload = c"cuModuleUnload"(module: Handle);
    needs module_function = c"cuModuleGetFunction"(function: *mut Handle, module: Handle, name: *const c_char);
    needs function_set = c"cuFuncSetAttribute"(function: Handle, attribute: c_int, value: c_int);
    needs launch = c"cuLaunchKernel"(
        function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared: c_uint, stream: Handle, parameters: *mut *mut c_void, extra: *mut *mut c_void
    );
}

impl Driver {
    /// Loads NVIDIA's driver.
    pub(crate) fn open() -> Result<Driver> {
        let library = Library::open()?;
        // SAFETY: it is NVIDIA's library, whose functions have the types that the table declares.
        unsafe { Driver::new(&|name| library.find(name)) }
    }

    /// A driver by its functions. Fails if it is too old, or one of those is missing that we cannot do without.
    ///
    /// # Safety
    /// What `lookup` finds must be the driver's function of that name, or one of the same type.
    pub(crate) unsafe fn new(lookup: Lookup<'_>) -> Result<Driver> {
        // SAFETY: the caller vouches for `lookup`.
        let driver = unsafe { Driver::fill(lookup) };
        // An old driver lacks functions too, and its age is what the user should hear of.
        if let Ok((major, minor)) = driver.version()
            && major * 1000 + minor * 10 < OLDEST
        {
            return Err(unusable(format!(
                "the NVIDIA driver is too old: it knows CUDA {major}.{minor}, and 12.0 is needed; update it to version 525 or \
                 newer"
            )));
        }
        match driver.missing() {
            Some(name) => Err(unusable(format!(
                "the NVIDIA driver lacks the function {}: it is incomplete, or its libcuda.so.1 is not NVIDIA's; install the \
                 driver again",
                name.to_string_lossy()
            ))),
            None => Ok(driver),
        }
    }

    /// The newest version of CUDA that it knows.
    pub(crate) fn version(&self) -> std::result::Result<(c_int, c_int), Failure> {
        let mut version = 0;
        // SAFETY: the place is valid during the call.
        unsafe { self.driver_version(&mut version) }?;
        Ok((version / 1000, version % 1000 / 10))
    }

    /// Starts the driver, as must be done before all else; more than once does no harm. `visible` is what `CUDA_VISIBLE_DEVICES` is
    /// set to, for messages.
    pub(crate) fn start(&self, visible: Option<&str>) -> Result<()> {
        // SAFETY: it takes no more than flags, of which there are none.
        unsafe { self.init(0) }.map_err(|failure| {
            let said = self.describe(failure);
            let (why, next) = match failure.code {
                code::NO_DEVICE => return no_device(&format!(" ({said})"), visible),
                code::NOT_READY_YET => (
                    "is not ready",
                    "wait until the machine has started; one with NVSwitch needs the service nvidia-fabricmanager",
                ),
                code::STUB => ("is a stub to build programs with", "install the driver itself"),
                code::MISMATCH => {
                    ("was updated since the system started", "restart the machine, so that all of it is of one version")
                }
                code::UNAVAILABLE
                | code::OPERATING_SYSTEM
                | code::NOT_PERMITTED
                | code::UNKNOWN => (
                    "cannot use the device",
                    "check that this user may open /dev/nvidiactl and /dev/nvidia0, and that a container is given them",
                ),
                _ => ("does not start", "check its installation"),
            };
            unusable(format!("the NVIDIA driver {why} ({said}); {next}"))
        })
    }

    /// A failure in the driver's words.
    pub(crate) fn describe(&self, failure: Failure) -> String {
        let Failure { call, code } = failure;
        let (mut name, mut words) = (std::ptr::null(), std::ptr::null());
        // SAFETY: the places are valid during the calls.
        let named = unsafe { (self.error_name(code, &mut name), self.error_string(code, &mut words)) };
        let text = |said: std::result::Result<(), Failure>, text: *const c_char| {
            said.ok().filter(|()| !text.is_null()).map(|()| {
                // SAFETY: on success it points to a string of the driver that ends with a zero and is never freed.
                unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
            })
        };
        let name = text(named.0, name).unwrap_or_else(|| "error".into());
        let words = text(named.1, words).map_or(String::new(), |words| format!(", {words}"));
        format!("{}: {name} ({code}){words}", call.to_string_lossy())
    }
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NVIDIA driver")
    }
}

/// True if one would expect a device here: NVIDIA's driver is installed, and does not say that there is none.
pub fn is_expected() -> bool {
    let Ok(library) = Library::open() else { return false };
    // SAFETY: it is NVIDIA's library, whose functions have the types that the table declares.
    let driver = unsafe { Driver::fill(&|name| library.find(name)) };
    // SAFETY: it takes no more than flags, of which there are none.
    let started = unsafe { driver.init(0) };
    !matches!(started, Err(Failure { code: code::NO_DEVICE, .. }))
}

/// The driver knows of no device that this program may use: `said` are its words, `visible` is what `CUDA_VISIBLE_DEVICES` is set to.
pub(crate) fn no_device(said: &str, visible: Option<&str>) -> Error {
    let next = match visible.map(str::trim) {
        None => "check that there is an NVIDIA GPU and, if it is in MIG mode, that it has an instance: `nvidia-smi -L`".into(),
        Some("") => "CUDA_VISIBLE_DEVICES is set to nothing, which hides all: unset it".into(),
        Some(set) => format!(
            "CUDA_VISIBLE_DEVICES is set to {set:?}, and what does not begin with the number or the UUID of a device hides all: \
             `nvidia-smi -L` lists them"
        ),
    };
    unusable(format!("the NVIDIA driver finds no device{said}; {next}"))
}

/// CUDA cannot be used at all.
pub(crate) fn unusable(why: String) -> Error {
    Error::Device { device: "CUDA".into(), why }
}

/// The driver's library. It is never closed: its threads may run until the process ends.
struct Library(#[cfg(unix)] NonNull<c_void>);

#[cfg(unix)]
impl Library {
    fn open() -> Result<Library> {
        // SAFETY: the name ends with a zero. The library's initialisation is NVIDIA's, as in every program that uses CUDA.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        NonNull::new(library).map(Library).ok_or_else(|| {
            // SAFETY: it returns null, or a string that is valid until the thread's next call of its family.
            let said = unsafe { libc::dlerror() };
            let said = match said.is_null() {
                true => "libcuda.so.1 cannot be loaded".into(),
                // SAFETY: as above, and it is not null.
                false => unsafe { CStr::from_ptr(said) }.to_string_lossy().into_owned(),
            };
            unusable(format!("there is no NVIDIA driver ({said}); install it, version 525 or newer"))
        })
    }

    fn find(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the library is open and the name ends with a zero.
        NonNull::new(unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) })
    }
}

#[cfg(not(unix))]
impl Library {
    fn open() -> Result<Library> {
        Err(unusable("it is used on Linux only; take another device".into()))
    }

    fn find(&self, _: &CStr) -> Option<NonNull<c_void>> {
        None
    }
}
