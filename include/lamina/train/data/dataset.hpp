// Dataset: images and their targets by number; and the sources that come with the library, by name.
#pragma once

#include <lamina/tensor/layout.hpp>
#include <lamina/train/data/transform.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace lamina {

/// Images with targets, and random access. To add a source of one's own, implement size() and
/// read().
class Dataset {
 public:
  /// `name` is for messages; labels are 0 to classes-1, or below zero: does not count. `target` is
  /// that of one image, plain, i32 or f32: by default a label.
  Dataset(std::string name, int classes, Transform transform,
          Form target = {{1, 1, 1, 1}, DType::i32, {}})
      : name_(std::move(name)),
        classes_(classes),
        transform_(transform),
        target_(std::move(target)) {}
  virtual ~Dataset() = default;

  virtual std::int64_t size() const = 0;

  /// Decodes image `index`, 0 to size()-1. Called from several threads at once, each with its own
  /// `to`, which has nothing of the image before. Throws Error naming the file.
  virtual void read(std::int64_t index, Sample& to) const = 0;

  const std::string& name() const { return name_; }
  int classes() const { return classes_; }
  /// Of one image as the network sees it; n = 1.
  Shape shape() const { return transform_.shape; }
  const Transform& transform() const { return transform_; }
  const Form& target() const { return target_; }
  /// Whether a target is one label.
  bool labels_samples() const { return target_ == Form{{1, 1, 1, 1}, DType::i32, {}}; }
  /// Whether it has rows and columns.
  bool labels_pixels() const { return target_.shape.h * target_.shape.w > 1; }

 private:
  std::string name_;
  int classes_;
  Transform transform_;
  Form target_;
};

struct DataOptions {
  bool train = true;       ///< the training set; false: the validation set
  bool augment = true;     ///< augment the training set (the validation set never is)
  std::int64_t limit = 0;  ///< keep this many images, evenly spaced; 0 = all

  /// What the network wants; 0 = what the data have (images: 3 x 224 x 224; synthetic: the same).
  std::int64_t channels = 0, height = 0, width = 0;

  int classes = 0;         ///< of synthetic data; 0 = 10
  std::uint64_t seed = 0;  ///< of synthetic data
};

/// Opens `synthetic`, `mnist:DIR`, `cifar10:DIR`, `cifar100:DIR` or `images:DIR`.
/// Throws Error: an unknown source, a missing, truncated or malformed file (it is named).
std::unique_ptr<Dataset> open_data(std::string_view source, const DataOptions& options = {});

/// A wave per class, in noise: learnable, made on the fly, the same for the same seed.
std::unique_ptr<Dataset> synthetic(const DataOptions& options = {});

/// IDX files as MNIST, Fashion-MNIST and `make_glyphs` name them, plain or .gz.
std::unique_ptr<Dataset> mnist(const std::string& dir, const DataOptions& options = {});

/// The binary version of CIFAR: data_batch_1.bin to data_batch_5.bin, test_batch.bin.
std::unique_ptr<Dataset> cifar10(const std::string& dir, const DataOptions& options = {});

/// The binary version of CIFAR: train.bin, test.bin; the fine labels.
std::unique_ptr<Dataset> cifar100(const std::string& dir, const DataOptions& options = {});

/// One folder of .jpg, .jpeg or .png files per class; the classes in the order of their names.
/// Where `dir` has train/ and val/ (or validation/ or test/) these are the two sets; otherwise
/// every tenth image of each class is held out as the validation set.
std::unique_ptr<Dataset> images(const std::string& dir, const DataOptions& options = {});

}  // namespace lamina
