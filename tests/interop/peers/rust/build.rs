//! Reads the versions of the two libraries from the lock file, which decides what is built.

fn main() {
    println!("cargo::rerun-if-changed=Cargo.lock");
    let lock = std::fs::read_to_string("Cargo.lock").expect("there is a lock file");
    for name in ["rlock", "rslock"] {
        let line = lock.lines().skip_while(|line| *line != format!("name = \"{name}\"")).nth(1);
        let version = line.and_then(|line| line.split('"').nth(1)).expect("it is locked");
        println!("cargo::rustc-env={}_VERSION={version}", name.to_uppercase());
    }
}
