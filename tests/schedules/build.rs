//! Sets `cfg(shuttle)` for this package, and for no other as `RUSTFLAGS` would.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cfg=shuttle");
    // The features of the package whose sources these are.
    println!(
        "cargo::rustc-check-cfg=cfg(feature, values(\"ctrlc\", \"metrics\", \"toml\", \"tracing\"))"
    );
}
