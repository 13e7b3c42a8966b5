//! The two libraries, rslock and rlock, behind the same verbs.

use rlock::sync_lock::{RLock, RLockGuard};
use rlock::{AcquireError, AcquireOptions, LeaseState, RenewalMode};
use rslock::{Lock, LockError, LockManager};
use std::collections::HashMap;
use std::fmt::{self, Display, Formatter};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

#[derive(Debug)]
pub enum Failed {
    Unsupported,
    Because(String),
}

impl Display for Failed {
    fn fmt(&self, to: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported => to.write_str("unsupported"),
            Self::Because(text) => to.write_str(&text.replace('\n', " ")),
        }
    }
}

impl<E: std::error::Error> From<E> for Failed {
    fn from(error: E) -> Self {
        let class = std::any::type_name::<E>().rsplit("::").next().unwrap_or("Error");
        Self::Because(format!("{class}: {error}"))
    }
}

/// The locks of one thread. Without a lease the library's own default is used.
pub trait Library: Send {
    fn lock(&mut self, name: &str, lease: Option<Duration>) -> Result<(), Failed>;
    fn try_lock(
        &mut self,
        name: &str,
        wait: Duration,
        lease: Option<Duration>,
    ) -> Result<bool, Failed>;
    fn unlock(&mut self, name: &str) -> Result<(), Failed>;
    fn extend(&mut self, name: &str, lease: Duration) -> Result<(), Failed>;
    fn state(&mut self, name: &str) -> Result<String, Failed>;
}

pub struct Kind {
    pub label: String,
    client: Client,
    lease: Option<Duration>,
    retry: Option<Duration>,
}

enum Client {
    Rslock(LockManager, Arc<Runtime>),
    Rlock(RLock),
}

pub fn of(url: &str, options: HashMap<String, String>) -> Result<Kind, Failed> {
    let millis = |name: &str| {
        let number = options.get(name).and_then(|text| text.parse().ok());
        number.filter(|millis| *millis > 0).map(Duration::from_millis)
    };
    let kind = options.get("kind").map_or("rslock", String::as_str);
    let retry = millis("retry");
    let client = match kind {
        "rslock" => {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()?;
            let mut manager = LockManager::new(url.split(',').collect::<Vec<_>>());
            if let Some(retry) = retry {
                manager.set_retry(3, retry);
            }
            Client::Rslock(manager, Arc::new(runtime))
        }
        "rlock" => Client::Rlock(RLock::new(url)?),
        other => return Err(Failed::Because(format!("no kind is called {other:?}"))),
    };
    let label = kind.to_owned();
    let renewed = (kind == "rlock").then(|| millis("watchdog")).flatten();
    Ok(Kind { label, client, lease: renewed.or_else(|| millis("lease")), retry })
}

impl Kind {
    pub fn version(&self) -> &'static str {
        match self.client {
            Client::Rslock(..) => concat!("rslock ", env!("RSLOCK_VERSION")),
            Client::Rlock(_) => concat!("rlock ", env!("RLOCK_VERSION")),
        }
    }

    pub fn for_thread(&self) -> Box<dyn Library> {
        match &self.client {
            Client::Rslock(manager, runtime) => Box::new(Rslock {
                manager: manager.clone(),
                runtime: runtime.clone(),
                lease: self.lease,
                held: HashMap::new(),
            }),
            Client::Rlock(client) => Box::new(Rlock {
                client: client.clone(),
                lease: self.lease,
                retry: self.retry,
                held: HashMap::new(),
            }),
        }
    }
}

struct Rslock {
    manager: LockManager,
    runtime: Arc<Runtime>,
    lease: Option<Duration>,
    held: HashMap<String, Lock>,
}

impl Rslock {
    fn lease(&self, lease: Option<Duration>) -> Result<Duration, Failed> {
        lease.or(self.lease).ok_or_else(|| Failed::Because("rslock has no default lease".into()))
    }

    /// Returns the lock that this thread holds, or one with a value that no holder has, so that the
    /// library itself refuses the call.
    fn take_or_foreign(&mut self, name: &str) -> Lock {
        self.held.remove(name).unwrap_or_else(|| Lock {
            resource: name.as_bytes().to_vec(),
            val: b"no holder".to_vec(),
            validity_time: 0,
            lock_manager: self.manager.clone(),
        })
    }
}

impl Library for Rslock {
    fn lock(&mut self, name: &str, lease: Option<Duration>) -> Result<(), Failed> {
        let lease = self.lease(lease)?;
        // The library's own loop: three attempts with pauses between them, then the next three at
        // once.
        let lock = self.runtime.block_on(self.manager.acquire_no_guard(name, lease))?;
        self.held.insert(name.to_owned(), lock);
        Ok(())
    }

    /// The library counts attempts and has no time limit, so the limit is checked here.
    fn try_lock(
        &mut self,
        name: &str,
        wait: Duration,
        lease: Option<Duration>,
    ) -> Result<bool, Failed> {
        let (lease, start) = (self.lease(lease)?, Instant::now());
        let mut manager = self.manager.clone();
        if wait.is_zero() {
            manager.set_retry(1, Duration::from_millis(1));
        }
        loop {
            match self.runtime.block_on(manager.lock(name, lease)) {
                Ok(lock) => {
                    self.held.insert(name.to_owned(), lock);
                    return Ok(true);
                }
                Err(LockError::Unavailable) if start.elapsed() < wait => {}
                Err(LockError::Unavailable) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The library does not report whether the release succeeded.
    fn unlock(&mut self, name: &str) -> Result<(), Failed> {
        let lock = self.take_or_foreign(name);
        self.runtime.block_on(lock.release());
        Ok(())
    }

    fn extend(&mut self, name: &str, lease: Duration) -> Result<(), Failed> {
        let lock = self.take_or_foreign(name);
        let extended = self.runtime.block_on(self.manager.extend(&lock, lease))?;
        self.held.insert(name.to_owned(), extended);
        Ok(())
    }

    fn state(&mut self, name: &str) -> Result<String, Failed> {
        let asked = self.manager.query_redis_for_key_value(name.as_bytes());
        let value = self.runtime.block_on(asked)?;
        let holds = self.held.get(name).is_some_and(|lock| value.as_ref() == Some(&lock.val));
        Ok(format!("locked={} holds={} ttl=?", value.is_some(), u8::from(holds)))
    }
}

struct Rlock {
    client: RLock,
    lease: Option<Duration>,
    retry: Option<Duration>,
    held: HashMap<String, RLockGuard>,
}

impl Rlock {
    /// Returns the options of a lock. A lease that the caller names is not renewed; the default
    /// lease is renewed after half of it.
    fn options(
        &self,
        wait: Option<Duration>,
        lease: Option<Duration>,
    ) -> Result<AcquireOptions, Failed> {
        let mut options = AcquireOptions::builder().lock_timeout(wait);
        if let Some(ttl) = lease.or(self.lease) {
            options = options.ttl(ttl);
        }
        if lease.is_some() {
            options = options.renewal_mode(RenewalMode::Disabled);
        }
        if let Some(retry) = self.retry {
            options = options.retry_interval(retry);
        }
        Ok(options.build()?)
    }
}

impl Library for Rlock {
    fn lock(&mut self, name: &str, lease: Option<Duration>) -> Result<(), Failed> {
        let guard = self.client.acquire_mutex_with_options(name, self.options(None, lease)?)?;
        self.held.insert(name.to_owned(), guard);
        Ok(())
    }

    fn try_lock(
        &mut self,
        name: &str,
        wait: Duration,
        lease: Option<Duration>,
    ) -> Result<bool, Failed> {
        let guard = if wait.is_zero() {
            self.client.try_acquire_mutex_with_options(name, self.options(None, lease)?)?
        } else {
            match self.client.acquire_mutex_with_options(name, self.options(Some(wait), lease)?) {
                Ok(guard) => Some(guard),
                Err(AcquireError::LockTimeout) => None,
                Err(error) => return Err(error.into()),
            }
        };
        let held = guard.is_some();
        if let Some(guard) = guard {
            self.held.insert(name.to_owned(), guard);
        }
        Ok(held)
    }

    /// Only a guard can be released, and without a hold there is no guard.
    fn unlock(&mut self, name: &str) -> Result<(), Failed> {
        let mut guard = self.held.remove(name).ok_or(Failed::Unsupported)?;
        Ok(guard.release()?)
    }

    fn extend(&mut self, _: &str, _: Duration) -> Result<(), Failed> {
        Err(Failed::Unsupported)
    }

    fn state(&mut self, name: &str) -> Result<String, Failed> {
        let holds =
            self.held.get(name).is_some_and(|guard| guard.lease_state() == LeaseState::Active);
        Ok(format!("locked=? holds={} ttl=?", u8::from(holds)))
    }
}
