// IDX files: the format of MNIST and Fashion-MNIST, plain or gzip.
//
//   2 zero bytes, 1 byte element type (0x08: unsigned byte), 1 byte rank, rank x 4 bytes big-endian sizes, the
//   elements.
//
// Images are rank 3 (magic 0x00000803: count, height, width), labels rank 1 (0x00000801: count).
// Source: http://yann.lecun.com/exdb/mnist/ ("The IDX file format").
#pragma once

#include <filesystem>

#include "runtime/data/image_set.h"

namespace difuse::runtime {

/// Reads a training set of grey images.
///
/// `path` is an image file, or a folder that holds one, such as train-images-idx3-ubyte.gz. In a folder the test set
/// (names with "t10k" or the word "test") is ignored, "train" is preferred, and a plain file is preferred to its gzip
/// twin; the summary says what was ignored. Labels come from the file beside it whose name says "labels" where this
/// says "images" (and idx1 for idx3), if there is one.
///
/// Errors, each with its own message: the path is missing; the folder is empty, or has no usable file, or several; the
/// file holds no image (something else, labels, a count of 0); it is truncated, or longer than its header says; the
/// labels are not as many as the images.
ImageSet read_idx(const std::filesystem::path& path);

/// Whether the first level of a folder has an IDX file of images, read or not: one that is damaged, but named as a
/// training set, counts. Files named as PNG, JPEG or WebP are not opened.
bool holds_idx(const std::filesystem::path& folder);

}  // namespace difuse::runtime
