//! Devices that cannot be had, or not all of them: others have them, the user or MIG mode hides them, memory is short.
//!
//! | trouble | tests |
//! |---|---|
//! | no library, an incomplete one, a driver before 12.0, a stub, one that was updated meanwhile | `trouble.rs`: `a_driver_that_cannot_be_used_is_said_with_what_to_do` `the_driver_of_this_machine_is_looked_for`; `cli/tests/suite/cuda.rs`: `a_driver_that_cannot_be_used_is_said_with_what_to_do` |
//! | a driver that is there and refuses | `cli/tests/suite/cuda.rs`: `the_doctor_lists_a_driver_that_refuses` |
//! | no device, no permission, links between devices that are not up yet | `trouble.rs`: as above; here `devices_that_are_hidden_are_said_with_what_hides_them` |
//! | `CUDA_VISIBLE_DEVICES` that is empty, or names none | here `devices_that_are_hidden_are_said_with_what_hides_them`; `cli/tests/suite/cuda.rs`: `devices_that_a_variable_hides_are_said_with_it` |
//! | a device of the wrong number | `cli/tests/suite/cuda.rs`: `the_device_is_chosen_by_its_index` |
//! | a capability below 8.0 | `trouble.rs`: `an_old_device_is_refused`; `cli/tests/suite/cuda.rs`: `the_doctor_lists_it` |
//! | exclusive-process and prohibited mode, MIG mode without an instance | here `a_device_that_others_have_is_said_with_what_to_do` |
//! | MIG instances | here `instances_of_a_gpu_are_devices` |
//! | memory that others have | here `memory_that_others_have_is_not_free`, `a_device_that_others_fill_goes_on`; `cli/tests/suite/cuda.rs`: `memory_that_others_have_is_planned_around` `a_gpu_that_others_fill_serves_on` |
//! | memory that runs out at load, at capture, in a step | `trouble.rs`: `memory_runs_out_with_words`; `replay.rs`; `cli/tests/suite/cuda.rs`: `who_finds_no_memory_fails_alone`, `a_gpu_that_others_fill_serves_on` |
//! | PTX that the driver refuses, no room for its code | `trouble.rs`: `a_module_that_is_not_understood_is_an_error_with_its_words` |
//! | memory that cannot be pinned | here `memory_that_cannot_be_pinned_is_used_as_it_is` |
//! | an illegal address, an ECC fault, a link that breaks | here `what_nothing_survives_is_a_loss`; `trouble.rs`: `a_device_that_is_lost_says_so` `a_loss_is_noticed_wherever_it_comes_up`; `cli/tests/suite/cuda.rs`: `a_lost_device_is_told_to_everybody_once` |
//! | a stop signal in a long step | `cli/tests/suite/cuda.rs`: `a_signal_in_a_long_step_ends_the_program` |

use tallow_core::ops::{Eltwise, EltwiseOp};
use tallow_core::{Backend, DType, Error, Memory};
use tallow_ptx::mock::{self, Gpu, Machine};

use super::{devices, open};
use crate::Cuda;
use crate::driver::{Driver, code};

#[test]
fn devices_that_are_hidden_are_said_with_what_hides_them() {
    let says = |machine, visible| {
        mock::set(machine);
        // SAFETY: its functions have the types of NVIDIA's, and do the same.
        let driver = unsafe { Driver::new(&mock::symbol) }.unwrap();
        driver.start(visible).unwrap_err().to_string()
    };
    let none = || Machine { devices: Vec::new(), ..Machine::default() };
    let begins = "CUDA failed: the NVIDIA driver finds no device (cuInit: CUDA_ERROR_NO_DEVICE (100), no CUDA-capable device is \
                  detected); ";
    assert_eq!(
        says(none(), None),
        format!(
            "{begins}check that there is an NVIDIA GPU and, if it is in MIG mode, that it has an instance: `nvidia-smi -L`"
        )
    );
    assert_eq!(
        says(none(), Some("")),
        format!("{begins}CUDA_VISIBLE_DEVICES is set to nothing, which hides all: unset it")
    );
    assert_eq!(
        says(none(), Some("gpu0")),
        format!(
            "{begins}CUDA_VISIBLE_DEVICES is set to \"gpu0\", and what does not begin with the number or the UUID of a device hides \
             all: `nvidia-smi -L` lists them"
        )
    );
    // Another failure has nothing to do with it.
    assert_eq!(
        says(Machine { fail: vec![("cuInit", 1, 802)], ..Machine::default() }, Some("0")),
        "CUDA failed: the NVIDIA driver is not ready (cuInit: CUDA_ERROR_SYSTEM_NOT_READY (802), system not yet initialized); wait \
         until the machine has started; one with NVSwitch needs the service nvidia-fabricmanager"
    );
    // A driver that starts, and has none.
    mock::set(none());
    let why = crate::driver::no_device("", Some("3")).to_string();
    assert!(
        why.starts_with(
            "CUDA failed: the NVIDIA driver finds no device; CUDA_VISIBLE_DEVICES is set to \"3\""
        )
    );
}

#[test]
fn a_device_that_others_have_is_said_with_what_to_do() {
    let says = |compute_mode, code| {
        let gpu = Gpu { compute_mode, ..Gpu::default() };
        let fail = vec![("cuDevicePrimaryCtxRetain", 1, code)];
        let found = devices(Machine { devices: vec![gpu], fail, ..Machine::default() }).unwrap();
        Cuda::open(&found[0]).unwrap_err().to_string()
    };
    let busy = "(cuDevicePrimaryCtxRetain: CUDA_ERROR_DEVICE_UNAVAILABLE (46), CUDA-capable device(s) is/are busy or unavailable)";
    assert_eq!(
        says(3, 46),
        format!(
            "cuda:0 interpreter failed: it is for one process at a time, and another one has it: `nvidia-smi` lists which; wait until \
             that has ended, take another device, or have an administrator allow more (nvidia-smi -c DEFAULT) {busy}"
        )
    );
    assert_eq!(
        says(2, 46),
        format!(
            "cuda:0 interpreter failed: programs may not use it: have an administrator allow them to (nvidia-smi -c DEFAULT), or take \
             another device {busy}"
        )
    );
    assert_eq!(
        says(0, 46),
        format!(
            "cuda:0 interpreter failed: it is busy, or in MIG mode without an instance: `nvidia-smi` shows which; take another device \
             meanwhile {busy}"
        )
    );
    assert_eq!(
        says(0, 2),
        "cuda:0 interpreter failed: others have taken its memory: `nvidia-smi` lists them; wait until one has ended, or take another \
         device (cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY (2), out of memory)"
    );
    // What others are not the reason for is said as the driver says it.
    let why = says(3, 999);
    assert_eq!(
        why,
        "cuda:0 interpreter failed: cuDevicePrimaryCtxRetain: CUDA_ERROR_UNKNOWN (999), unknown error"
    );
}

/// Instances of one GPU have names, UUIDs and memory of their own, and one place on the bus.
#[test]
fn instances_of_a_gpu_are_devices() {
    let instance = |n: u8, kind: &str, memory| Gpu {
        name: format!("NVIDIA H100 80GB HBM3 MIG {kind}"),
        memory,
        uuid: [n; 16],
        ..Gpu::default()
    };
    let gpus = vec![instance(1, "1g.10gb", 1 << 20), instance(2, "3g.40gb", 4 << 20)];
    let found = devices(Machine { devices: gpus, ..Machine::default() }).unwrap();
    let names: Vec<String> = found.iter().map(|found| found.about().to_string()).collect();
    assert_eq!(
        names,
        ["cuda:0 NVIDIA H100 80GB HBM3 MIG 1g.10gb", "cuda:1 NVIDIA H100 80GB HBM3 MIG 3g.40gb"]
    );
    let ids: Vec<_> =
        found.iter().map(|found| (found.about().uuid.unwrap()[0], found.about().pci.as_deref())).collect();
    assert_eq!(ids, [(1, Some("0000:01:00.0")), (2, Some("0000:01:00.0"))]);
    // Each has room for its own memory, and no more.
    for (found, fits) in found.iter().zip([false, true]) {
        assert_eq!(found.free_memory().unwrap(), found.about().memory);
        let b = Cuda::open(found).unwrap();
        assert_eq!(b.alloc(DType::U8, 2, 1 << 20).is_ok(), fits, "{}", b.label());
    }
}

#[test]
fn memory_that_others_have_is_not_free() {
    let found = devices(Machine::default()).unwrap();
    let total = found[0].about().memory;
    mock::others_take(total - 4096);
    assert_eq!((found[0].free_memory().unwrap(), found[0].about().memory), (4096, total));
    mock::others_take(total + 1);
    assert_eq!(found[0].free_memory().unwrap(), 0);
}

/// An op that finds no room fails; those that have memory go on. Blocks that nobody uses are given up for it, and others may have them.
#[test]
fn a_device_that_others_fill_goes_on() {
    let total = 1 << 20;
    let b = open(Machine { devices: vec![Gpu { memory: total, ..Gpu::default() }], ..Machine::default() });
    let x = b.upload(&[1.0f32, 2.0], 1, 2).unwrap();
    drop(b.alloc(DType::U8, 512, 1024).unwrap());
    mock::others_take(total / 4);
    // It fits after what is kept for others of its size has been freed.
    drop(b.alloc(DType::U8, 700, 1024).unwrap());
    mock::others_take(total);
    let refused = b.alloc(DType::U8, 300, 1024);
    assert!(matches!(refused, Err(Error::OutOfMemory { .. })), "{refused:?}");
    let free = b.memory().unwrap().1;
    assert_eq!(free, 0);
    assert_eq!(b.download::<f32>(&x).unwrap(), [1.0, 2.0]);
    mock::others_take(0);
    let free = b.memory().unwrap().1;
    assert!(free > total - 4096, "{free} bytes are free: the pool keeps some");
    let y = b.run(Eltwise { x: &x, op: EltwiseOp::Scale(2.0) }).unwrap();
    assert_eq!(b.download::<f32>(&y).unwrap(), [2.0, 4.0]);
}

#[test]
fn memory_that_cannot_be_pinned_is_used_as_it_is() {
    let data: Vec<u32> = (0..2 << 20).map(|i: u32| i.wrapping_mul(0x9E37_79B9)).collect();
    // No room, a limit of the system, one of a container.
    for refusal in [2, 304, 800] {
        let fail = (1..100).map(|nth| ("cuMemHostAlloc", nth, refusal)).collect();
        let b = open(Machine { fail, ..Machine::default() });
        let t = b.upload(&data, 2, 1 << 20).unwrap();
        assert!(b.download::<u32>(&t).unwrap() == data);
        assert!(b.counts().pageable > 0);
        let y = b.upload(&[1.0f32, 2.0], 1, 2).unwrap();
        let y = b.run(Eltwise { x: &y, op: EltwiseOp::Scale(2.0) }).unwrap();
        assert_eq!(b.download::<f32>(&y).unwrap(), [2.0, 4.0]);
        drop((t, y, b));
        assert_eq!(mock::calls("cuMemFreeHost"), 0);
    }
    // Once there is pinned memory again it is taken.
    let b = open(Machine { fail: vec![("cuMemHostAlloc", 1, 2)], ..Machine::default() });
    let t = b.upload(&data, 2, 1 << 20).unwrap();
    assert!(b.download::<u32>(&t).unwrap() == data);
    assert_eq!((b.counts().pageable, mock::calls("cuMemHostAlloc") > 1), (1, true));
    // A device that is lost meanwhile is none that refuses.
    let b = open(Machine { fail: vec![("cuMemHostAlloc", 1, 719)], ..Machine::default() });
    let lost = b.upload(&[1.0f32], 1, 1).unwrap_err();
    assert!(matches!(lost, Error::Lost { .. }), "{lost}");
}

#[test]
fn what_nothing_survives_is_a_loss() {
    for fault in code::LOST {
        let b = open(Machine { fail: vec![("cuLaunchKernel", 1, fault)], ..Machine::default() });
        let x = b.upload(&[1.0f32, 2.0], 1, 2).unwrap();
        let twice = || b.run(Eltwise { x: &x, op: EltwiseOp::Scale(2.0) });
        let (first, second) = (twice().unwrap_err(), twice().unwrap_err());
        assert!(matches!(first, Error::Lost { .. }), "{fault}: {first}");
        assert_eq!((mock::calls("cuLaunchKernel"), first.to_string()), (1, second.to_string()));
    }
    let b = open(Machine { fail: vec![("cuLaunchKernel", 1, 214)], ..Machine::default() });
    let x = b.upload(&[1.0f32, 2.0], 1, 2).unwrap();
    let why = b.run(Eltwise { x: &x, op: EltwiseOp::Scale(2.0) }).unwrap_err().to_string();
    assert_eq!(
        why,
        "cuda:0 interpreter is lost: cuLaunchKernel: CUDA_ERROR_ECC_UNCORRECTABLE (214), uncorrectable ECC error encountered"
    );
}
