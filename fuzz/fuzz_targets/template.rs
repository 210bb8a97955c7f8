//! A chat template's source.
#![no_main]

use tallow_text::template::ChatTemplate;

libfuzzer_sys::fuzz_target!(|source: &str| {
    if let Ok(template) = ChatTemplate::new(source) {
        tallow_fuzz::render(&template);
    }
});
