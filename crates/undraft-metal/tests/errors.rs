//! What other systems are told.

use undraft_metal::{MetalBackend, MetalError};

#[test]
fn a_device_that_is_not_there_is_an_error() {
    match MetalBackend::new() {
        Ok(backend) => assert!(format!("{backend:?}").starts_with("MetalBackend { name: "), "{backend:?}"),
        Err(e @ MetalError::NotApple) => {
            assert_eq!(e.to_string(), "this is no Apple system, expected one for a Metal device");
        }
        Err(e @ MetalError::NoDevice) => assert_eq!(e.to_string(), "this system has no Metal device"),
        other => panic!("expected a device or an error that says that there is none, got {other:?}"),
    }
}
