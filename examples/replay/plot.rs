//! A picture of a replay's memory.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use plotters::prelude::*;

use super::common::cli::{Failure, Outcome};
use super::curves::{Curves, Sample};
use super::options::Options;
use super::report::Replayed;

const SIZE: (u32, u32) = (1000, 480);
const FONT: &str = "sans-serif";
const RESERVED: RGBColor = RGBColor(0xd5, 0x5e, 0x00);
const IN_USE: RGBColor = RGBColor(0x00, 0x72, 0xb2);
const LIVE: RGBColor = RGBColor(0xb8, 0xd4, 0xe8);
const MARK: RGBColor = RGBColor(0x70, 0x70, 0x70);

/// The file that a picture, or an export, is written to. What it had before stays until then.
pub(crate) struct Picture {
    /// The option that names it.
    option: &'static str,
    path: PathBuf,
    file: File,
    /// It was not there before.
    is_new: bool,
    is_written: bool,
}

impl Picture {
    /// Opens the file: where that cannot be done, it is known before the replay begins.
    pub(crate) fn open(path: &Path) -> Outcome<Picture> {
        Picture::open_for("--plot", path)
    }

    pub(crate) fn open_for(option: &'static str, path: &Path) -> Outcome<Picture> {
        let mut options = OpenOptions::new();
        options.write(true);
        let (opened, is_new) = match options.clone().create_new(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                (options.open(path), false)
            }
            opened => (opened, true),
        };
        let file = opened.map_err(|error| failed(option, path, &error))?;
        Ok(Picture { option, path: path.to_owned(), file, is_new, is_written: false })
    }

    pub(crate) fn write(mut self, content: impl AsRef<[u8]>) -> Outcome<()> {
        let written = self.file.set_len(0).and_then(|()| self.file.write_all(content.as_ref()));
        written.map_err(|error| failed(self.option, &self.path, &error))?;
        self.is_written = true;
        Ok(())
    }
}

impl Drop for Picture {
    fn drop(&mut self) {
        if self.is_new && !self.is_written {
            // The replay has failed, and says why: an empty file that stays is no further matter.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn failed(option: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::Run(format!("{option}: {} cannot be written: {error}", path.display()).into())
}

/// What the picture is of.
pub(crate) fn title(options: &Options, own: &Replayed) -> String {
    let limit =
        own.limit_bytes.map_or(String::new(), |bytes| format!(", limit {:.1} MiB", mib(bytes)));
    format!(
        "{}: {:.3} times the peak of live bytes taken, {:.3} when warm (backend {}, policy {}, kernels: {}{limit})",
        own.trace,
        own.taken_over_live(),
        own.taken_over_live_warm(),
        options.backend.as_str(),
        options.reuse_name(),
        options.kernels.as_str(),
    )
}

/// Draws the curves, as SVG. The same curves give the same text.
pub(crate) fn draw(title: &str, curves: &Curves) -> Outcome<String> {
    let mut svg = String::new();
    draw_on(SVGBackend::with_string(&mut svg, SIZE), title, curves)?;
    Ok(svg)
}

fn draw_on(backend: SVGBackend<'_>, title: &str, curves: &Curves) -> Outcome<()> {
    let highest = curves.points().map(|(_, sample)| sample.reserved.max(sample.in_use)).max();
    // Room for the legend above the curves.
    let top = mib(highest.unwrap_or(0)).max(1.0) * 1.4;
    let end = curves.operations * curves.passes.iter().filter(|points| !points.is_empty()).count();
    let area = backend.into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, (FONT, 17))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(68)
        .build_cartesian_2d(0..end, 0.0..top)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc("operations (allocations and frees), cold pass and warm pass")
        .y_desc("device memory, MiB")
        .y_label_formatter(&|mib| format!("{mib:.0}"))
        .label_style((FONT, 14))
        .axis_desc_style((FONT, 15))
        .draw()?;
    let curve = |bytes: fn(&Sample) -> u64| {
        curves.points().map(move |(at, sample)| (at, mib(bytes(&sample))))
    };
    let swatch =
        |color: RGBColor, (x, y)| Rectangle::new([(x, y - 3), (x + 18, y + 3)], color.filled());
    chart
        .draw_series(AreaSeries::new(curve(|sample| sample.live), 0.0, LIVE))?
        .label("live: as the trace asked for it")
        .legend(move |at| swatch(LIVE, at));
    chart
        .draw_series(LineSeries::new(curve(|sample| sample.in_use), IN_USE))?
        .label("in use: as the pool rounds it")
        .legend(move |at| swatch(IN_USE, at));
    chart
        .draw_series(LineSeries::new(curve(|sample| sample.reserved), RESERVED.stroke_width(2)))?
        .label("reserved: taken from the device, by its own account")
        .legend(move |at| swatch(RESERVED, at));
    let marks = (1..end / curves.operations.max(1)).map(|pass| {
        let at = pass * curves.operations;
        PathElement::new([(at, 0.0), (at, top)], MARK)
    });
    chart
        .draw_series(marks)?
        .label("the warm pass begins")
        .legend(|(x, y)| PathElement::new([(x + 9, y - 7), (x + 9, y + 7)], MARK));
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.85))
        .border_style(MARK)
        .label_font((FONT, 14))
        .draw()?;
    area.present()?;
    Ok(())
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
