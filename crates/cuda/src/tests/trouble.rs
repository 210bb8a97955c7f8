//! Error messages: no usable device, and devices that fail.

use std::time::{Duration, Instant};

use tallow_core::ops::{Copy, Eltwise, EltwiseOp};
use tallow_core::{Backend, DType, Error, Memory, Result, Tensor};
use tallow_ptx::mock::{self, Gpu, Machine};
use tallow_support::PATIENCE;

use super::{devices, open};
use crate::Cuda;
use crate::args::Args;
use crate::gpu::Launch;
use crate::kernels::Kernel;

/// Why there are no devices on a machine.
fn why(machine: Machine) -> String {
    devices(machine).unwrap_err().to_string()
}

#[test]
fn a_driver_that_cannot_be_used_is_said_with_what_to_do() {
    let says = |machine, words: &[&str]| {
        let why = why(machine);
        assert!(words.iter().all(|word| why.contains(word)), "{why}");
    };
    let machine = Machine::default;
    says(
        Machine { driver_version: 11_080, ..machine() },
        &["it knows CUDA 11.8, and 12.0 is needed", "update it"],
    );
    says(
        Machine { lacks: vec!["cuMemAlloc_v2"], ..machine() },
        &["lacks the function cuMemAlloc_v2", "install"],
    );
    // Its age comes first.
    let old = Machine { driver_version: 11_080, lacks: vec!["cuMemAlloc_v2"], ..machine() };
    says(old, &["too old"]);
    says(
        Machine { devices: Vec::new(), ..machine() },
        &["finds no device", "there is an NVIDIA GPU", "nvidia-smi -L"],
    );
    let fails = |code| Machine { fail: vec![("cuInit", 1, code)], ..machine() };
    says(
        fails(304),
        &["cannot use the device", "CUDA_ERROR_OPERATING_SYSTEM (304)", "may open /dev/nvidiactl"],
    );
    says(fails(803), &["was updated since the system started", "restart"]);
    says(fails(34), &["is a stub", "error (34)"]);
    says(fails(3), &["does not start", "CUDA_ERROR_NOT_INITIALIZED (3), initialization error"]);
}

/// There is no such library where tests run, or it has no device, or it has one.
#[test]
fn the_driver_of_this_machine_is_looked_for() {
    match crate::devices(None) {
        Ok(found) => assert!(!found.is_empty()),
        Err(why) => assert!(why.to_string().starts_with("CUDA failed: "), "{why}"),
    }
}

#[test]
fn a_device_is_described() {
    let gpu = Gpu { capability: (9, 0), name: "H".into(), ..Gpu::default() };
    let found =
        devices(Machine { devices: vec![Gpu::default(), gpu], driver_version: 12_040, ..Machine::default() });
    let about = found.unwrap()[1].about().clone();
    assert_eq!(about.to_string(), "cuda:1 H");
    assert_eq!((about.capability, about.driver, about.memory), ((9, 0), (12, 4), 16 << 30));
    assert_eq!((about.uuid, about.pci.as_deref()), (Some(*b"interpreter no 0"), Some("0000:01:00.0")));
    assert_eq!(about.features, ["2 multiprocessors", "99 KiB shared"]);
    // An older driver.
    let machine = Machine { lacks: vec!["cuDeviceGetUuid_v2"], ..Machine::default() };
    assert!(devices(machine).unwrap()[0].about().uuid.is_some());
    let lacks = vec!["cuDeviceGetUuid_v2", "cuDeviceGetUuid", "cuDeviceGetPCIBusId", "cuGetErrorName"];
    let about = devices(Machine { lacks, ..Machine::default() }).unwrap()[0].about().clone();
    assert_eq!((about.uuid, about.pci), (None, None));
}

#[test]
fn an_old_device_is_refused() {
    let devices = devices(Machine {
        devices: vec![
            Gpu { capability: (7, 5), ..Gpu::default() },
            Gpu { capability: (8, 0), ..Gpu::default() },
        ],
        ..Machine::default()
    });
    let devices = devices.unwrap();
    let why = Cuda::open(&devices[0]).unwrap_err().to_string();
    assert!(why.contains("it has compute capability 7.5, and 8.0 is needed"), "{why}");
    devices[1].check().unwrap();
    assert_eq!(mock::calls("cuDevicePrimaryCtxRetain"), 0);
}

/// A device that another program has for itself.
#[test]
fn a_device_that_does_not_open_is_given_back() {
    for function in ["cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuStreamCreate"] {
        let found = devices(Machine { fail: vec![(function, 1, 46)], ..Machine::default() }).unwrap();
        let why = Cuda::open(&found[0]).unwrap_err().to_string();
        assert!(why.contains(&format!("{function}: CUDA_ERROR_DEVICE_UNAVAILABLE (46)")), "{why}");
        let retained =
            mock::calls("cuDevicePrimaryCtxRetain") - u64::from(function == "cuDevicePrimaryCtxRetain");
        assert_eq!(mock::calls("cuDevicePrimaryCtxRelease_v2"), retained);
        Cuda::open(&found[0]).unwrap();
    }
}

#[test]
fn memory_runs_out_with_words() {
    let small = Gpu { memory: 1 << 20, ..Gpu::default() };
    let b = open(Machine { devices: vec![small], ..Machine::default() });
    let _half = b.alloc(DType::U8, 600, 1024).unwrap();
    for (rows, cols) in [(500, 1024), (2000, 1024), (usize::MAX / 8, 8), (1 << 33, 0), (1, 1 << 33)] {
        let refused = b.alloc(DType::F32, rows, cols);
        assert!(matches!(refused, Err(Error::OutOfMemory { .. })), "{rows} x {cols}: {refused:?}");
    }
    let full = b.alloc(DType::U8, 500, 1024).unwrap_err().to_string();
    assert_eq!(full, "cuda:0 interpreter has no room for 512000 more bytes");
    // The device still works.
    let x = b.upload(&[1.0f32, 2.0, 3.0], 1, 3).unwrap();
    assert_eq!(b.download::<f32>(&x).unwrap(), [1.0, 2.0, 3.0]);
}

/// A kernel that reads past its memory loses the device: every call says so from then on, in the same words, and none reaches the
/// driver. Who opens it again has a new context.
#[test]
fn a_device_that_is_lost_says_so() {
    let found = devices(Machine::default()).unwrap();
    let b = Cuda::open(&found[0]).unwrap();
    let x = b.upload(&[1.0f32; 64], 8, 8).unwrap();
    let (kernel, grid) = (Kernel { module: "rowwise", name: "copy_words" }, [1, 1, 1]);
    let args = Args::new().matrix(&x).wide(1 << 20).word(8).word(8).word(8).word(0);
    let lost = b.gpu.launch(&Launch { kernel, grid, block: 256, shared: 0, args }).unwrap_err();
    let said = lost.to_string();
    assert!(matches!(lost, Error::Lost { .. }), "{said}");
    assert_eq!(
        said,
        "cuda:0 interpreter is lost: cuLaunchKernel: CUDA_ERROR_ILLEGAL_ADDRESS (700), an illegal memory access was encountered"
    );
    let fault = mock::last_fault().unwrap();
    assert!(fault.contains("copy_words") && fault.contains("there is no memory at 0x100"), "{fault}");
    let calls = mock::calls("cuCtxSetCurrent");
    let to = x.row_range(0..4);
    let tried = [
        b.upload(&[1.0f32], 1, 1).err(),
        b.alloc(DType::F32, 8, 8).err(),
        b.write(&x, &[0; 256]).err(),
        b.zero(&x).err(),
        b.zero(&x.row_range(0..0)).err(),
        b.download::<f32>(&x).err(),
        b.fetch(&[&x.row_range(0..0)]).err(),
        b.run(Eltwise { x: &x, op: EltwiseOp::Scale(2.0) }).err(),
        b.run(Copy { from: &x.row_range(4..8), to: &to }).err(),
        b.begin().err(),
        b.sync().err(),
        b.clock().err(),
    ];
    for (i, e) in tried.into_iter().enumerate() {
        assert_eq!(e.unwrap().to_string(), said, "call {i}");
    }
    assert_eq!(mock::calls("cuCtxSetCurrent"), calls);
    drop((b, x, to));
    let b = Cuda::open(&found[0]).unwrap();
    let x = b.upload(&[1.0f32, 2.0], 1, 2).unwrap();
    let y = b.run(Eltwise { x: &x, op: EltwiseOp::Scale(3.0) }).unwrap();
    assert_eq!(b.download::<f32>(&y).unwrap(), [3.0, 6.0]);
}

/// A GPU reports what a kernel did when somebody next asks for something.
#[test]
fn a_loss_is_noticed_wherever_it_comes_up() {
    for function in
        ["cuMemAlloc_v2", "cuMemcpyHtoDAsync_v2", "cuEventRecord", "cuEventQuery", "cuModuleLoadDataEx"]
    {
        // The first allocation is the backend's own.
        let nth = 1 + u64::from(function == "cuMemAlloc_v2");
        let b = open(Machine { fail: vec![(function, nth, 719)], ..Machine::default() });
        let all = || {
            let x = b.upload(&[1.0f32, 2.0], 1, 2)?;
            let y = b.run(Eltwise { x: &x, op: EltwiseOp::Scale(2.0) })?;
            b.download::<f32>(&y)
        };
        let (first, second) = (all().unwrap_err(), all().unwrap_err());
        assert!(matches!(first, Error::Lost { .. }) && first.to_string().contains(function), "{first}");
        assert_eq!(first.to_string(), second.to_string());
    }
}

/// A kernel that never ends loses the device to whoever waits for it, whatever for, and nobody waits twice, nor for the driver to let
/// go of it. What does not wait goes on.
#[test]
fn work_that_does_not_end_loses_the_device() {
    let patience = Duration::from_millis(50);
    type Wait<'a> = &'a dyn Fn(&Cuda, &Tensor<Cuda>) -> Result<()>;
    let waits: [Wait<'_>; 4] = [
        &|b, x| b.download::<f32>(x).map(drop),
        &|b, _| b.sync(),
        &|b, _| b.clock().map(drop),
        // The host waits for the oldest of many writes.
        &|b, x| (0..20).try_for_each(|_| b.write(x, &[0; 8])),
    ];
    for wait in waits {
        let b = open(Machine { endless: Some("eltwise"), ..Machine::default() });
        b.gpu.wait_at_most(patience);
        let x = b.upload(&[1.0f32, 2.0], 1, 2).unwrap();
        let y = b.run(Eltwise { x: &x, op: EltwiseOp::Scale(2.0) }).unwrap();
        assert!(b.begin().unwrap());
        let begun = Instant::now();
        let lost = wait(&b, &y).unwrap_err();
        let took = begun.elapsed();
        assert!((patience..PATIENCE).contains(&took), "{took:?}");
        assert!(matches!(lost, Error::Lost { .. }), "{lost}");
        assert_eq!(
            lost.to_string(),
            "cuda:0 interpreter is lost: its work has not ended for 0.05 s; see with nvidia-smi whether another program keeps it \
             busy, and restart this one"
        );
        let calls = mock::calls("cuCtxSetCurrent");
        assert_eq!(b.sync().unwrap_err().to_string(), lost.to_string());
        assert_eq!(mock::calls("cuCtxSetCurrent"), calls);
        drop((b, x, y));
        assert_eq!(mock::calls("cuDevicePrimaryCtxRelease_v2"), 0);
    }
    // The same of a replay.
    let b = open(Machine { endless: Some("eltwise"), ..Machine::default() });
    b.gpu.wait_at_most(patience);
    let x = b.upload(&[1.0f32, 2.0], 1, 2).unwrap();
    let replay = b.capture(&mut || b.run(Eltwise { x: &x, op: EltwiseOp::Scale(2.0) }).map(drop)).unwrap();
    replay.unwrap().launch().unwrap();
    assert!(matches!(b.download::<f32>(&x), Err(Error::Lost { .. })));
}

/// A failed call does not make later ones fail.
#[test]
fn a_failure_that_is_none_of_these_is_over() {
    let b = open(Machine {
        fail: vec![("cuLaunchKernel", 1, 1), ("cuMemcpyDtoHAsync_v2", 1, 1)],
        ..Machine::default()
    });
    let x = b.upload(&[1.0f32, 2.0], 1, 2).unwrap();
    let twice = || b.run(Eltwise { x: &x, op: EltwiseOp::Scale(2.0) });
    let why = twice().unwrap_err().to_string();
    assert_eq!(
        why,
        "cuda:0 interpreter failed: eltwise of rowwise: cuLaunchKernel: CUDA_ERROR_INVALID_VALUE (1), invalid argument"
    );
    let y = twice().unwrap();
    assert!(matches!(b.download::<f32>(&y), Err(Error::Device { .. })));
    assert_eq!(b.download::<f32>(&y).unwrap(), [2.0, 4.0]);
}

#[test]
fn kernels_that_are_not_there_are_said() {
    let b = open(Machine::default());
    let fails = |module, name, args| {
        let launch = Launch { kernel: Kernel { module, name }, grid: [1, 1, 1], block: 256, shared: 0, args };
        b.gpu.launch(&launch).unwrap_err().to_string()
    };
    assert_eq!(
        fails("nothing", "copy", Args::new()),
        "CUDA failed: this program has no kernel called nothing/copy"
    );
    assert_eq!(
        fails("rowwise", "nothing", Args::new()),
        "CUDA failed: this program has no kernel called rowwise/nothing"
    );
    // Arguments of another size than the kernel's.
    assert_eq!(
        fails("rowwise", "copy_words", Args::new().word(1)),
        "cuda:0 interpreter failed: copy_words of rowwise takes 48 bytes of arguments and 256 threads, not 4 and 256"
    );
    let nothing = Launch {
        kernel: Kernel { module: "nothing", name: "copy" },
        grid: [1, 0, 1],
        block: 256,
        shared: 0,
        args: Args::new(),
    };
    b.gpu.launch(&nothing).unwrap();
}

/// The log of the driver's PTX compiler is part of the error.
#[test]
fn a_module_that_is_not_understood_is_an_error_with_its_words() {
    let b = open(Machine { fail: vec![("cuModuleLoadDataEx", 1, 218)], ..Machine::default() });
    let x = b.upload(&[1.0f32, 2.0], 1, 2).unwrap();
    let twice = || b.run(Eltwise { x: &x, op: EltwiseOp::Scale(2.0) });
    let why = twice().unwrap_err().to_string();
    assert!(
        why.contains("the module rowwise cannot be loaded: cuModuleLoadDataEx: CUDA_ERROR_INVALID_PTX (218)"),
        "{why}"
    );
    // There was no room for its code, and the pool had some.
    let b = open(Machine { fail: vec![("cuModuleLoadDataEx", 1, 2)], ..Machine::default() });
    let x = b.upload(&[1.0f32, 2.0], 1, 2).unwrap();
    drop(b.alloc(DType::F32, 100, 100).unwrap());
    b.run(Eltwise { x: &x, op: EltwiseOp::Scale(2.0) }).unwrap();
}
