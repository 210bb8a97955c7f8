//! A safetensors file beside the settings of each quantization method of folders.
#![no_main]

/// Settings of models of the same few shapes.
const SETTINGS: [&[u8]; 6] = [
    include_bytes!("../../tests/goldens/quant/gptq-4bit-g32-actorder/config.json"),
    include_bytes!("../../tests/goldens/quant/gptq-8bit-g64/config.json"),
    include_bytes!("../../tests/goldens/quant/awq-4bit-g32/config.json"),
    include_bytes!("../../tests/goldens/quant/ct-w4a16-g32/config.json"),
    include_bytes!("../../tests/goldens/quant/fp8-block32/config.json"),
    include_bytes!("../../tests/goldens/quant/gpt-oss-mxfp4/config.json"),
];

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    tallow_fuzz::write("model.safetensors", bytes);
    for settings in SETTINGS {
        tallow_fuzz::write("config.json", settings);
        tallow_fuzz::open(tallow_fuzz::folder());
    }
});
