//! The driver's functions as C calls them, under their own names: a program that loads `library` in place of NVIDIA's
//! finds them there. Each thread of it has a machine of its own, as everywhere.
//!
//! # Safety
//!
//! Who calls them gives what NVIDIA's documentation asks for: places for results, and memory of the size that is named.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::NonNull;
use std::time::Instant;

use super::calls::{call, put};
use super::graphs::{
    graph_destroy, graph_exec_destroy, graph_instantiate, graph_launch, stream_begin_capture,
    stream_end_capture, stream_query,
};
use super::{Event, Outcome, STATE, Work, code};

/// Address of a driver function.
macro_rules! functions {
    ($($symbol:literal => $function:ident,)*) => {
        /// A function of the driver, as its library would have it.
        pub fn symbol(name: &CStr) -> Option<NonNull<c_void>> {
            let name = name.to_str().ok()?;
            if STATE.with(|state| state.borrow().machine.lacks.iter().any(|lacks| *lacks == name)) {
                return None;
            }
            match name {
                $($symbol => NonNull::new(($function as *const ()).cast_mut().cast()),)*
                _ => None,
            }
        }
    };
}

functions! {
    "cuDriverGetVersion" => driver_version,
    "cuInit" => init,
    "cuGetErrorName" => error_name,
    "cuGetErrorString" => error_string,
    "cuDeviceGetCount" => device_count,
    "cuDeviceGet" => device_get,
    "cuDeviceGetName" => device_name,
    "cuDeviceTotalMem_v2" => device_memory,
    "cuDeviceGetAttribute" => device_attribute,
    "cuDeviceGetUuid" => device_uuid,
    "cuDeviceGetUuid_v2" => device_uuid,
    "cuDeviceGetPCIBusId" => device_pci,
    "cuDevicePrimaryCtxRetain" => context_retain,
    "cuDevicePrimaryCtxRelease_v2" => context_release,
    "cuCtxSetCurrent" => context_set,
    "cuMemGetInfo_v2" => memory_info,
    "cuMemAlloc_v2" => mem_alloc,
    "cuMemFree_v2" => mem_free,
    "cuMemHostAlloc" => host_alloc,
    "cuMemFreeHost" => host_free,
    "cuMemcpyHtoDAsync_v2" => copy_up,
    "cuMemcpyDtoHAsync_v2" => copy_down,
    "cuMemcpyDtoDAsync_v2" => copy_within,
    "cuMemsetD8Async" => fill_bytes,
    "cuStreamCreate" => stream_create,
    "cuStreamDestroy_v2" => stream_destroy,
    "cuStreamQuery" => stream_query,
    "cuStreamBeginCapture_v2" => stream_begin_capture,
    "cuStreamEndCapture" => stream_end_capture,
    "cuGraphInstantiateWithFlags" => graph_instantiate,
    "cuGraphLaunch" => graph_launch,
    "cuGraphExecDestroy" => graph_exec_destroy,
    "cuGraphDestroy" => graph_destroy,
    "cuEventCreate" => event_create,
    "cuEventDestroy_v2" => event_destroy,
    "cuEventRecord" => event_record,
    "cuEventQuery" => event_query,
    "cuEventElapsedTime" => event_elapsed,
    "cuModuleLoadDataEx" => module_load,
    "cuModuleUnload" => module_unload,
    "cuModuleGetFunction" => module_function,
    "cuFuncSetAttribute" => function_set,
    "cuLaunchKernel" => launch,
}

/// Writes a text with the zero that ends it, as much as there is room for.
///
/// # Safety
/// `at` must be null or have so much room.
unsafe fn put_text(at: *mut c_char, room: usize, text: &str) -> Outcome {
    if at.is_null() || room == 0 {
        return Err(code::INVALID_VALUE);
    }
    let len = text.len().min(room - 1);
    // SAFETY: there is room for so many bytes and a zero.
    unsafe {
        at.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), len);
        at.add(len).write(0);
    }
    Ok(())
}

#[unsafe(export_name = "cuDriverGetVersion")]
unsafe extern "C" fn driver_version(version: *mut c_int) -> c_int {
    // SAFETY: the caller gives a place.
    call("cuDriverGetVersion", |state| unsafe { put(version, state.machine.driver_version) })
}

#[unsafe(export_name = "cuInit")]
unsafe extern "C" fn init(_flags: c_uint) -> c_int {
    call("cuInit", |state| {
        if state.machine.devices.is_empty() {
            return Err(code::NO_DEVICE);
        }
        state.is_started = true;
        Ok(())
    })
}

/// Names and descriptions of what functions return.
fn said(code: c_int) -> Option<(&'static CStr, &'static CStr)> {
    Some(match code {
        0 => (c"CUDA_SUCCESS", c"no error"),
        1 => (c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
        2 => (c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
        3 => (c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error"),
        46 => (c"CUDA_ERROR_DEVICE_UNAVAILABLE", c"CUDA-capable device(s) is/are busy or unavailable"),
        100 => (c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected"),
        101 => (c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
        200 => (c"CUDA_ERROR_INVALID_IMAGE", c"device kernel image is invalid"),
        201 => (c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
        214 => (c"CUDA_ERROR_ECC_UNCORRECTABLE", c"uncorrectable ECC error encountered"),
        218 => (c"CUDA_ERROR_INVALID_PTX", c"a PTX JIT compilation failed"),
        304 => (c"CUDA_ERROR_OPERATING_SYSTEM", c"OS call failed or operation not supported on this OS"),
        400 => (c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle"),
        401 => (c"CUDA_ERROR_ILLEGAL_STATE", c"the operation cannot be performed in the present state"),
        500 => (c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
        600 => (c"CUDA_ERROR_NOT_READY", c"device not ready"),
        700 => (c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered"),
        719 => (c"CUDA_ERROR_LAUNCH_FAILED", c"unspecified launch failure"),
        800 => (c"CUDA_ERROR_NOT_PERMITTED", c"operation not permitted"),
        802 => (c"CUDA_ERROR_SYSTEM_NOT_READY", c"system not yet initialized"),
        803 => (
            c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
            c"system has unsupported display driver / cuda driver combination",
        ),
        900 => {
            (c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", c"operation not permitted when stream is capturing")
        }
        901 => (
            c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
            c"operation failed due to a previous error during capture",
        ),
        907 => (
            c"CUDA_ERROR_CAPTURED_EVENT",
            c"operation not permitted on an event last recorded in a capturing stream",
        ),
        999 => (c"CUDA_ERROR_UNKNOWN", c"unknown error"),
        _ => return None,
    })
}

#[unsafe(export_name = "cuGetErrorName")]
unsafe extern "C" fn error_name(code: c_int, name: *mut *const c_char) -> c_int {
    call("cuGetErrorName", |_| {
        let (text, _) = said(code).ok_or(code::INVALID_VALUE)?;
        // SAFETY: the caller gives a place.
        unsafe { put(name, text.as_ptr()) }
    })
}

#[unsafe(export_name = "cuGetErrorString")]
unsafe extern "C" fn error_string(code: c_int, words: *mut *const c_char) -> c_int {
    call("cuGetErrorString", |_| {
        let (_, text) = said(code).ok_or(code::INVALID_VALUE)?;
        // SAFETY: the caller gives a place.
        unsafe { put(words, text.as_ptr()) }
    })
}

#[unsafe(export_name = "cuDeviceGetCount")]
unsafe extern "C" fn device_count(count: *mut c_int) -> c_int {
    call("cuDeviceGetCount", |state| {
        state.started()?;
        // SAFETY: the caller gives a place.
        unsafe { put(count, state.machine.devices.len() as c_int) }
    })
}

#[unsafe(export_name = "cuDeviceGet")]
unsafe extern "C" fn device_get(device: *mut c_int, index: c_int) -> c_int {
    call("cuDeviceGet", |state| {
        state.gpu(index)?;
        // SAFETY: the caller gives a place.
        unsafe { put(device, index) }
    })
}

#[unsafe(export_name = "cuDeviceGetName")]
unsafe extern "C" fn device_name(name: *mut c_char, room: c_int, device: c_int) -> c_int {
    // SAFETY: the caller gives so much room.
    call("cuDeviceGetName", |state| unsafe {
        put_text(name, room.max(0) as usize, &state.gpu(device)?.1.name)
    })
}

#[unsafe(export_name = "cuDeviceGetPCIBusId")]
unsafe extern "C" fn device_pci(id: *mut c_char, room: c_int, device: c_int) -> c_int {
    // SAFETY: the caller gives so much room.
    call("cuDeviceGetPCIBusId", |state| unsafe {
        put_text(id, room.max(0) as usize, &state.gpu(device)?.1.pci)
    })
}

#[unsafe(export_name = "cuDeviceTotalMem_v2")]
unsafe extern "C" fn device_memory(bytes: *mut usize, device: c_int) -> c_int {
    // SAFETY: the caller gives a place.
    call("cuDeviceTotalMem_v2", |state| unsafe { put(bytes, state.gpu(device)?.1.memory as usize) })
}

#[unsafe(export_name = "cuDeviceGetUuid_v2")]
unsafe extern "C" fn device_uuid(uuid: *mut [u8; 16], device: c_int) -> c_int {
    // SAFETY: the caller gives a place.
    call("cuDeviceGetUuid", |state| unsafe { put(uuid, state.gpu(device)?.1.uuid) })
}

#[unsafe(export_name = "cuDeviceGetAttribute")]
unsafe extern "C" fn device_attribute(value: *mut c_int, attribute: c_int, device: c_int) -> c_int {
    call("cuDeviceGetAttribute", |state| {
        let (_, gpu) = state.gpu(device)?;
        let known = match attribute {
            // Multiprocessors; whether it shares the host's memory; how programs share it.
            16 => 2,
            18 => 0,
            20 => gpu.compute_mode,
            75 => gpu.capability.0 as c_int,
            76 => gpu.capability.1 as c_int,
            97 => gpu.shared_memory as c_int,
            _ => return Err(code::INVALID_VALUE),
        };
        // SAFETY: the caller gives a place.
        unsafe { put(value, known) }
    })
}

#[unsafe(export_name = "cuDevicePrimaryCtxRetain")]
unsafe extern "C" fn context_retain(context: *mut *mut c_void, device: c_int) -> c_int {
    call("cuDevicePrimaryCtxRetain", |state| {
        let (index, _) = state.gpu(device)?;
        let handle = state.retain(index);
        // SAFETY: the caller gives a place.
        unsafe { put(context, handle as *mut c_void) }
    })
}

#[unsafe(export_name = "cuDevicePrimaryCtxRelease_v2")]
unsafe extern "C" fn context_release(device: c_int) -> c_int {
    call("cuDevicePrimaryCtxRelease_v2", |state| {
        let (index, _) = state.gpu(device)?;
        state.release(index)
    })
}

#[unsafe(export_name = "cuCtxSetCurrent")]
unsafe extern "C" fn context_set(context: *mut c_void) -> c_int {
    call("cuCtxSetCurrent", |state| {
        state.started()?;
        state.current = match context as usize {
            0 => None,
            handle => {
                let found = state.contexts.iter().find(|(_, context)| context.handle == handle);
                Some(*found.ok_or(code::INVALID_CONTEXT)?.0)
            }
        };
        Ok(())
    })
}

#[unsafe(export_name = "cuMemGetInfo_v2")]
unsafe extern "C" fn memory_info(free: *mut usize, total: *mut usize) -> c_int {
    call("cuMemGetInfo_v2", |state| {
        let unused = state.current.map_or(0, |index| state.free(index));
        let (_, gpu) = state.context()?;
        // SAFETY: the caller gives places.
        unsafe {
            put(free, unused as usize)?;
            put(total, gpu.memory as usize)
        }
    })
}

#[unsafe(export_name = "cuMemAlloc_v2")]
unsafe extern "C" fn mem_alloc(address: *mut u64, bytes: usize) -> c_int {
    // SAFETY: the caller gives a place.
    call("cuMemAlloc_v2", |state| unsafe { put(address, state.alloc(bytes)?) })
}

#[unsafe(export_name = "cuMemFree_v2")]
unsafe extern "C" fn mem_free(address: u64) -> c_int {
    call("cuMemFree_v2", |state| {
        let (context, _) = state.context()?;
        context.graphs.may_wait()?;
        context.allocations.remove(&address).ok_or(code::INVALID_VALUE)?;
        context.device.free(address);
        Ok(())
    })
}

#[unsafe(export_name = "cuMemHostAlloc")]
unsafe extern "C" fn host_alloc(at: *mut *mut c_void, bytes: usize, _flags: c_uint) -> c_int {
    call("cuMemHostAlloc", |state| {
        state.context()?.0.graphs.may_wait()?;
        let layout = Layout::from_size_align(bytes, 4096).ok().filter(|layout| layout.size() > 0);
        let layout = layout.ok_or(code::INVALID_VALUE)?;
        // SAFETY: its size is not zero.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(code::OUT_OF_MEMORY)?;
        state.pinned.insert(memory.as_ptr() as usize, layout);
        // SAFETY: the caller gives a place.
        unsafe { put(at, memory.as_ptr().cast()) }
    })
}

#[unsafe(export_name = "cuMemFreeHost")]
unsafe extern "C" fn host_free(at: *mut c_void) -> c_int {
    call("cuMemFreeHost", |state| {
        state.context()?.0.graphs.may_wait()?;
        let layout = state.pinned.remove(&(at as usize)).ok_or(code::INVALID_VALUE)?;
        // SAFETY: it was allocated with this layout, and is freed once.
        unsafe { dealloc(at.cast(), layout) };
        Ok(())
    })
}

#[unsafe(export_name = "cuMemcpyHtoDAsync_v2")]
unsafe extern "C" fn copy_up(to: u64, from: *const c_void, bytes: usize, stream: *mut c_void) -> c_int {
    call("cuMemcpyHtoDAsync_v2", |state| {
        if from.is_null() {
            return Err(code::INVALID_VALUE);
        }
        state.enqueue(stream as usize, &Work::Upload { to, from: from.cast(), bytes })
    })
}

#[unsafe(export_name = "cuMemcpyDtoHAsync_v2")]
unsafe extern "C" fn copy_down(to: *mut c_void, from: u64, bytes: usize, stream: *mut c_void) -> c_int {
    call("cuMemcpyDtoHAsync_v2", |state| {
        if to.is_null() {
            return Err(code::INVALID_VALUE);
        }
        state.enqueue(stream as usize, &Work::Download { to: to.cast(), from, bytes })
    })
}

#[unsafe(export_name = "cuMemcpyDtoDAsync_v2")]
unsafe extern "C" fn copy_within(to: u64, from: u64, bytes: usize, stream: *mut c_void) -> c_int {
    call("cuMemcpyDtoDAsync_v2", |state| state.enqueue(stream as usize, &Work::Copy { to, from, bytes }))
}

#[unsafe(export_name = "cuMemsetD8Async")]
unsafe extern "C" fn fill_bytes(to: u64, value: u8, bytes: usize, stream: *mut c_void) -> c_int {
    call("cuMemsetD8Async", |state| state.enqueue(stream as usize, &Work::Fill { to, value, bytes }))
}

#[unsafe(export_name = "cuStreamCreate")]
unsafe extern "C" fn stream_create(stream: *mut *mut c_void, _flags: c_uint) -> c_int {
    call("cuStreamCreate", |state| {
        let handle = state.handle();
        state.context()?.0.streams.insert(handle);
        // SAFETY: the caller gives a place.
        unsafe { put(stream, handle as *mut c_void) }
    })
}

#[unsafe(export_name = "cuStreamDestroy_v2")]
unsafe extern "C" fn stream_destroy(stream: *mut c_void) -> c_int {
    call("cuStreamDestroy_v2", |state| {
        let was = state.context()?.0.streams.remove(&(stream as usize));
        if was { Ok(()) } else { Err(code::INVALID_HANDLE) }
    })
}

#[unsafe(export_name = "cuEventCreate")]
unsafe extern "C" fn event_create(event: *mut *mut c_void, flags: c_uint) -> c_int {
    call("cuEventCreate", |state| {
        let handle = state.handle();
        let made = Event { takes_time: flags & 2 == 0, recorded: None, hangs: false, is_captured: false };
        state.context()?.0.events.insert(handle, made);
        // SAFETY: the caller gives a place.
        unsafe { put(event, handle as *mut c_void) }
    })
}

#[unsafe(export_name = "cuEventDestroy_v2")]
unsafe extern "C" fn event_destroy(event: *mut c_void) -> c_int {
    call("cuEventDestroy_v2", |state| {
        state.context()?.0.events.remove(&(event as usize)).map(drop).ok_or(code::INVALID_HANDLE)
    })
}

#[unsafe(export_name = "cuEventRecord")]
unsafe extern "C" fn event_record(event: *mut c_void, stream: *mut c_void) -> c_int {
    call("cuEventRecord", |state| state.enqueue(stream as usize, &Work::Record(event as usize)))
}

#[unsafe(export_name = "cuEventQuery")]
unsafe extern "C" fn event_query(event: *mut c_void) -> c_int {
    call("cuEventQuery", |state| {
        let (context, _) = state.context()?;
        context.graphs.may_wait()?;
        let event = context.events.get(&(event as usize)).ok_or(code::INVALID_HANDLE)?;
        match event {
            Event { is_captured: true, .. } => Err(code::CAPTURED_EVENT),
            Event { hangs: true, .. } => Err(code::NOT_READY),
            _ => Ok(()),
        }
    })
}

#[unsafe(export_name = "cuEventElapsedTime")]
unsafe extern "C" fn event_elapsed(milliseconds: *mut f32, from: *mut c_void, to: *mut c_void) -> c_int {
    call("cuEventElapsedTime", |state| {
        let (context, _) = state.context()?;
        let time = |event: *mut c_void| -> Result<Instant, c_int> {
            let event = context.events.get(&(event as usize)).filter(|event| event.takes_time);
            event.and_then(|event| event.recorded).ok_or(code::INVALID_HANDLE)
        };
        let passed = time(to)?.saturating_duration_since(time(from)?);
        // SAFETY: the caller gives a place.
        unsafe { put(milliseconds, passed.as_secs_f32() * 1000.0) }
    })
}

#[unsafe(export_name = "cuModuleLoadDataEx")]
unsafe extern "C" fn module_load(
    module: *mut *mut c_void,
    image: *const c_void,
    count: c_uint,
    options: *mut c_int,
    values: *mut *mut c_void,
) -> c_int {
    call("cuModuleLoadDataEx", |state| {
        state.context()?.0.graphs.may_wait()?;
        if image.is_null() {
            return Err(code::INVALID_VALUE);
        }
        // SAFETY: the caller gives a text that ends with a zero.
        let text = unsafe { CStr::from_ptr(image.cast()) }.to_str().map_err(|_| code::INVALID_IMAGE)?;
        match state.load(text) {
            // SAFETY: the caller gives a place.
            Ok(handle) => unsafe { put(module, handle as *mut c_void) },
            Err(why) => {
                // SAFETY: the caller gives so many options, each with its value.
                let value = |wanted: c_int| unsafe {
                    let which = (0..count as usize).find(|i| *options.add(*i) == wanted);
                    which.map(|i| *values.add(i))
                };
                // The log of errors, and its size.
                if let (Some(log), Some(room)) = (value(5), value(6)) {
                    // SAFETY: the caller gives a log with so much room.
                    unsafe { put_text(log.cast(), room as usize, &why) }?;
                }
                Err(code::INVALID_PTX)
            }
        }
    })
}

#[unsafe(export_name = "cuModuleUnload")]
unsafe extern "C" fn module_unload(module: *mut c_void) -> c_int {
    call("cuModuleUnload", |state| {
        let (context, _) = state.context()?;
        context.graphs.may_wait()?;
        context.modules.remove(&(module as usize)).ok_or(code::INVALID_HANDLE)?;
        context.functions.retain(|_, function| function.module != module as usize);
        Ok(())
    })
}

#[unsafe(export_name = "cuModuleGetFunction")]
unsafe extern "C" fn module_function(
    function: *mut *mut c_void,
    module: *mut c_void,
    name: *const c_char,
) -> c_int {
    call("cuModuleGetFunction", |state| {
        // SAFETY: the caller gives a text that ends with a zero.
        let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| code::NOT_FOUND)?;
        let handle = state.function(module as usize, name)?;
        // SAFETY: the caller gives a place.
        unsafe { put(function, handle as *mut c_void) }
    })
}

#[unsafe(export_name = "cuFuncSetAttribute")]
unsafe extern "C" fn function_set(function: *mut c_void, attribute: c_int, value: c_int) -> c_int {
    call("cuFuncSetAttribute", |state| {
        let (context, gpu) = state.context()?;
        let function = context.functions.get_mut(&(function as usize)).ok_or(code::INVALID_HANDLE)?;
        match u32::try_from(value) {
            // Most shared memory beside what it declares.
            Ok(shared) if attribute == 8 && shared <= gpu.shared_memory => {
                function.shared = shared;
                Ok(())
            }
            _ => Err(code::INVALID_VALUE),
        }
    })
}

#[allow(clippy::too_many_arguments, reason = "as many as the driver's function has")]
#[unsafe(export_name = "cuLaunchKernel")]
unsafe extern "C" fn launch(
    function: *mut c_void,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    stream: *mut c_void,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> c_int {
    call("cuLaunchKernel", |state| {
        // Parameters come in one piece, or there are none.
        if !parameters.is_null() {
            return Err(code::INVALID_VALUE);
        }
        // SAFETY: the caller gives a list of tags, each with its value, that ends with a zero, and as many bytes as it says.
        let bytes = unsafe { packed(extra) }?;
        let extent = [[grid_x, grid_y, grid_z], [block_x, block_y, block_z]];
        state.launch(function as usize, extent, shared, stream as usize, bytes)
    })
}

/// The bytes of a launch's parameters.
///
/// # Safety
/// `extra` must be null, or a list of tags, each with its value, that ends with a zero; the bytes that it names must be there as long
/// as the result is used.
unsafe fn packed<'a>(mut extra: *mut *mut c_void) -> Result<&'a [u8], c_int> {
    let (mut bytes, mut size) = (std::ptr::null::<u8>(), 0);
    // SAFETY: the caller gives such a list.
    unsafe {
        while !extra.is_null() && !(*extra).is_null() {
            let value = *extra.add(1);
            match *extra as usize {
                1 => bytes = value.cast_const().cast(),
                2 => size = *value.cast::<usize>(),
                _ => return Err(code::INVALID_VALUE),
            }
            extra = extra.add(2);
        }
    }
    match (bytes.is_null(), size) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(code::INVALID_VALUE),
        // SAFETY: the caller gives so many bytes.
        (false, size) => Ok(unsafe { std::slice::from_raw_parts(bytes, size) }),
    }
}
