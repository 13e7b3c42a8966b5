//! One of the processes of [`distlock_tests::contenders`].

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    distlock_tests::contenders::contend(&arguments);
}
