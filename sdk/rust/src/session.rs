//! One instance's state between calls: its options, its runtime and the open returner.
//!
//! Invariants: the host calls one function at a time; the returner exists from a successful `open` to `close`,
//! except after a call that failed with `retry`, when it is dropped and opened anew by the next call, unless its type says that it
//! stays.

use std::cell::RefCell;
use std::ops::AsyncFnOnce;

use crate::bindings::lifecycle::exports::salt::returner::lifecycle::Config;
use crate::{Context, Error, Failure, Result, Returner};

/// Holds a plugin's state; `export!` puts one into a thread-local of the plugin.
pub struct Session<T: Returner> {
    inner: RefCell<Option<Inner<T>>>,
}

struct Inner<T> {
    runtime: tokio::runtime::Runtime,
    options: String,
    context: Context,
    returner: Option<T>,
}

impl<T: Returner> Session<T> {
    /// A session that is not open.
    pub const fn new() -> Self {
        Self { inner: RefCell::new(None) }
    }

    /// `lifecycle.open`.
    pub fn open(&self, config: Config) -> Result<(), Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Error::fatal(format!("cannot start the plugin's runtime: {error}")))?;
        let context = Context { sink: config.sink, id: config.id, role: config.role };
        let mut inner = Inner { runtime, options: config.options, context, returner: None };
        inner.connect()?;
        *self.inner.borrow_mut() = Some(inner);
        Ok(())
    }

    /// `lifecycle.close`.
    pub fn close(&self) {
        if let Some(mut inner) = self.inner.borrow_mut().take()
            && let Some(returner) = inner.returner.take()
        {
            inner.runtime.block_on(returner.close());
        }
    }

    /// Runs one function of the plugin, after opening it again if the last call lost its connection.
    pub fn call<R>(&self, function: impl AsyncFnOnce(&mut T) -> Result<R>) -> Result<R, Failure> {
        let mut slot = self.inner.borrow_mut();
        let inner =
            slot.as_mut().ok_or_else(|| Error::fatal("the plugin was called before it was opened"))?;
        inner.connect()?;
        let Some(returner) = inner.returner.as_mut() else {
            return Err(Error::fatal("the plugin did not open").into());
        };
        let result = inner.runtime.block_on(function(returner));
        if T::REOPEN && matches!(result, Err(Error::Retry { .. })) {
            inner.returner = None;
        }
        result.map_err(Failure::from)
    }
}

impl<T: Returner> Default for Session<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Returner> Inner<T> {
    fn connect(&mut self) -> Result<()> {
        if self.returner.is_none() {
            let options: T::Options = serde_json::from_str(&self.options)
                .map_err(|error| Error::fatal(format!("the options do not fit the plugin: {error}")))?;
            self.returner = Some(self.runtime.block_on(T::open(options, &self.context))?);
        }
        Ok(())
    }
}
