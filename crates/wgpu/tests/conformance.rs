//! Every op against its oracle, on every device of this machine.

use std::time::Instant;

use tallow_core::Backend;
use tallow_core::conformance::{Suite, cases};
use tallow_support::needed;
use tallow_wgpu::{Wgpu, devices};

#[test]
fn conformance() {
    let found = devices();
    if needed("Vulkan or Metal device", found.first()).is_none() {
        return;
    }
    for found in &found {
        let b = Wgpu::open(found).unwrap();
        let mut failed = Vec::new();
        for case in cases() {
            let begun = Instant::now();
            let outcome = (case.run)(&b, Suite::exact());
            println!("{}: {} {:?} in {:?}", b.label(), case.name, outcome.is_ok(), begun.elapsed());
            failed.extend(outcome.err().map(|why| format!("{}: {}: {why}", b.label(), case.name)));
        }
        assert!(failed.is_empty(), "{}", failed.join("\n"));
    }
}
