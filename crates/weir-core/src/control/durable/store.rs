//! How an image becomes the state file: never in place, never believed before the disk has it.
//!
//! ```text
//! write beside ─► sync it ─► rename over the old ─► sync the folder
//! ```
//!
//! Promises: a power cut at any moment leaves the old file or the new one, whole. The steps are a trait so
//! that a simulated disk that loses what was not synced drives the same code as a real one.

/// Where the state file is.
pub trait Disk {
    type Error;

    /// Writes a file beside the state file, over one that was left there.
    fn write_beside(&mut self, image: &[u8]) -> Result<(), Self::Error>;
    fn sync_beside(&mut self) -> Result<(), Self::Error>;
    /// Makes it the state file.
    fn rename(&mut self) -> Result<(), Self::Error>;
    fn sync_folder(&mut self) -> Result<(), Self::Error>;
}

/// When it returns well, the image outlives a power cut.
pub fn save<D: Disk>(disk: &mut D, image: &[u8]) -> Result<(), D::Error> {
    disk.write_beside(image)?;
    disk.sync_beside()?;
    disk.rename()?;
    disk.sync_folder()
}
