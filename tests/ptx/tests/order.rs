//! Races between CTAs, and the order of launches.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests and what they share")]

use tallow_ptx::{Device, Error, Launch, Module, Trouble};

/// `look` has each CTA read a word and write its own, `put` has one write the word that all read, `both` has all read it and the
/// last write it.
const TEXT: &str = "
.version 7.8
.target sm_80
.address_size 64
.visible .entry look(.param .u64 word, .param .u64 out)
{
.reg .b32 %r<4>;
.reg .b64 %rd<5>;
ld.param.u64 %rd1, [word];
ld.param.u64 %rd2, [out];
mov.u32 %r1, %ctaid.x;
mul.wide.u32 %rd3, %r1, 4;
add.s64 %rd4, %rd2, %rd3;
ld.global.u32 %r2, [%rd1];
st.global.u32 [%rd4], %r2;
ret;
}
.visible .entry put(.param .u64 word, .param .u64 out)
{
.reg .b32 %r<4>;
.reg .b64 %rd<5>;
ld.param.u64 %rd1, [word];
mov.u32 %r1, %ctaid.x;
st.global.u32 [%rd1], %r1;
ret;
}
.visible .entry both(.param .u64 word, .param .u64 out)
{
.reg .pred %p<2>;
.reg .b32 %r<4>;
.reg .b64 %rd<5>;
ld.param.u64 %rd1, [word];
mov.u32 %r1, %ctaid.x;
ld.global.u32 %r2, [%rd1];
setp.ne.s32 %p1, %r1, 2;
@%p1 bra $done;
st.global.u32 [%rd1], %r2;
$done:
ret;
}
";

fn launch(
    device: &mut Device,
    (kernel, ctas): (&str, u32),
    places: [u64; 2],
    seed: u64,
) -> Result<u64, Error> {
    let module = Module::new(TEXT)?;
    let parameters: Vec<u8> = places.into_iter().flat_map(u64::to_le_bytes).collect();
    let launch =
        Launch { grid: [ctas, 1, 1], block: [1; 3], shared: 0, parameters: &parameters, seed, limit: 1000 };
    let kernel = module.kernel(kernel)?;
    device.launch(&kernel, &launch)
}

fn places(device: &mut Device) -> [u64; 2] {
    let word = device.alloc(4);
    device.write(word, &[1; 4]).unwrap();
    [word, device.alloc(16)]
}

#[test]
fn a_launch_is_over_when_the_next_one_begins() {
    for seed in 0..20 {
        let mut device = Device::default();
        let places = places(&mut device);
        for round in 0..3 {
            // Of one CTA, and of several.
            for ctas in [1, 4] {
                launch(&mut device, ("look", ctas), places, seed).unwrap();
                launch(&mut device, ("put", 1), places, seed)
                    .unwrap_or_else(|e| panic!("{seed}, {round}: {e}"));
            }
        }
    }
}

#[test]
fn a_write_races_with_the_reads_of_several() {
    for seed in 0..20 {
        let mut device = Device::default();
        let places = places(&mut device);
        launch(&mut device, ("look", 4), places, seed).unwrap();
        let raced = launch(&mut device, ("both", 3), places, seed);
        let Err(Error::Fault(fault)) = raced else { panic!("{seed}: {raced:?}") };
        assert!(matches!(fault.trouble, Trouble::Race { .. }), "{seed}: {fault}");
    }
}

#[test]
fn a_copy_within_the_device_knows_what_was_written() {
    let mut device = Device::default();
    let (from, to) = (device.alloc(16), device.alloc(16));
    device.fill(from, 7, 4).unwrap();
    device.fill(to, 8, 16).unwrap();
    device.copy(to, from, 8).unwrap();
    let out = device.alloc(16);
    launch(&mut device, ("look", 1), [to, out], 1).unwrap();
    let unwritten = launch(&mut device, ("look", 1), [to + 4, out], 1);
    let Err(Error::Fault(fault)) = unwritten else { panic!("{unwritten:?}") };
    assert!(matches!(fault.trouble, Trouble::Unwritten { .. }), "{fault}");
    launch(&mut device, ("look", 1), [to + 8, out], 1).unwrap();
    assert!(matches!(device.copy(to, from, 17), Err(Error::Transfer(_))));
    assert!(matches!(device.fill(to + 1, 0, 16), Err(Error::Transfer(_))));
}
