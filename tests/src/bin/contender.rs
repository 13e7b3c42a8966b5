//! The program of the processes that [`distlock_tests::contenders`] starts.

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    distlock_tests::contenders::contend(&arguments);
}
