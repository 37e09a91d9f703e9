//! torch's operations: registration through its stable C ABI, and the boxed kernels that the dispatcher calls.

mod abi;
mod kernels;

use std::ffi::{CStr, CString};
use std::sync::OnceLock;

use crate::error::Result;
use crate::ops::OPS;
use abi::{Abi, Library};

/// Namespace of the operations.
const NAMESPACE: &CStr = c"undraft";

/// torch's functions; kernels run after they are found alone.
static ABI: OnceLock<Abi> = OnceLock::new();
/// What the first registration came to.
static REGISTERED: OnceLock<Result<()>> = OnceLock::new();

/// Registers all operations with the torch that this process has loaded, once.
///
/// # Errors
/// [`crate::error::Error::Torch`] if there is none, or it is too old, or refuses a schema.
pub fn register() -> Result<()> {
    REGISTERED.get_or_init(try_register).clone()
}

fn try_register() -> Result<()> {
    let loaded = Abi::load()?;
    let abi = ABI.get_or_init(|| loaded);
    let definitions = Library::fragment(abi, NAMESPACE)?;
    for op in &OPS {
        definitions.define(&c_string(&op.schema()))?;
    }
    let keys: &[&CStr] = if abi.current_cuda_stream.is_some() { &[c"CPU", c"CUDA"] } else { &[c"CPU"] };
    for key in keys {
        let implementations = Library::implementation(abi, NAMESPACE, key)?;
        for (op, kernel) in OPS.iter().zip(kernels::KERNELS) {
            implementations.implement(&c_string(op.name), kernel)?;
        }
    }
    Ok(())
}

/// Text of this crate, which has no zeros.
fn c_string(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}
