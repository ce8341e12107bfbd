// Checkpoints of a network: round trips, other dtypes, other models, several ranks, failures.
#include "catch.hpp"
#include "support/no_kernels.hpp"
#include "unit/checkpoint_files.hpp"

#include <lamina/base/random.hpp>
#include <lamina/comm/threads.hpp>
#include <lamina/kernels/backends.hpp>
#include <lamina/layers/batch_norm.hpp>
#include <lamina/layers/conv2d.hpp>
#include <lamina/layers/linear.hpp>
#include <lamina/network/placed.hpp>
#include <lamina/train/checkpoint.hpp>
#include <lamina/train/safetensors.hpp>

#include <cstring>

using namespace lamina;
using namespace checkpoint_files;

namespace {

/// A layout that plain code would misread: channels last, filled up to a multiple of four of them.
class Padded final : public LayoutKind {
 public:
  explicit Padded(Shape s) : shape_(s) {}
  std::string name() const override { return "padded"; }
  std::int64_t elements() const override { return shape_.n * shape_.h * shape_.w * room(); }
  bool equals(const LayoutKind& other) const override {
    const auto* o = dynamic_cast<const Padded*>(&other);
    return o && o->shape_ == shape_;
  }
  std::uint64_t fingerprint() const override { return 3; }  // of one shape at a time
  /// Place of element i of the plain layout.
  std::int64_t place(std::int64_t i) const {
    const std::int64_t area = shape_.h * shape_.w, c = i / area % shape_.c;
    return (i / area / shape_.c * area + i % area) * room() + c;
  }

 private:
  std::int64_t room() const { return (shape_.c + 3) / 4 * 4; }
  Shape shape_;
};

/// The reference back end, whose linear layers keep f32 weights in that layout. Made for saving and
/// loading the network below, not for running it.
class PaddedReference : public test::NoKernels {
 public:
  std::string name() const override { return "padded"; }
  bool supports(const Precision& p) const override { return p == Precision(DType::f32); }

  std::unique_ptr<WeightedKernel> conv(const ConvGeometry& g, const Form& x,
                                       const Epilogue& e) const override {
    return reference_->conv(g, x, e);
  }
  std::unique_ptr<WeightedKernel> linear(std::int64_t features, bool bias, const Form& x,
                                         const Epilogue& e) const override {
    auto kernel = reference_->linear(features, bias, x, e);
    kernel->w.layout = Layout(std::make_shared<Padded>(kernel->w.shape));
    return kernel;
  }
  std::unique_ptr<NormKernel> batch_norm(const Form& x, const Epilogue& e) const override {
    return reference_->batch_norm(x, e);
  }
  void copy(const View& from, const View& to) const override {
    const auto* in = dynamic_cast<const Padded*>(from.layout.kind());
    const auto* out = dynamic_cast<const Padded*>(to.layout.kind());
    for (std::int64_t i = 0; i < from.shape.size(); ++i)
      to.as<float>()[out ? out->place(i) : i] = from.as<float>()[in ? in->place(i) : i];
  }

 private:
  std::shared_ptr<const Backend> reference_ = reference_backend();
};

/// Cuts a file off behind its header as soon as a tensor of it has arrived.
class Cutting final : public PaddedReference {
 public:
  explicit Cutting(std::string path) : path_(std::move(path)) {}
  void copy(const View& from, const View& to) const override {
    PaddedReference::copy(from, to);
    std::filesystem::resize_file(path_, 64);
  }

 private:
  std::string path_;
};

struct Options {
  DType dtype = DType::f32;
  int states = 2, features = 4;
  bool padded = false;
};

/// conv, batch norm, linear, with optimizer states.
struct Model {
  PlacedNetwork net;
  std::vector<Tensor> states;

  explicit Model(std::uint64_t seed, Options o = {}) : net(place(o)) {
    // Values of which no two are alike, whatever the layers start with.
    std::uint64_t key = 0;
    for (const auto& n : net.parameters()) {
      fill(n.parameter->value, seed, ++key);
      for (int i = 0; i < (n.parameter->trained ? o.states : 0); ++i) {
        states.emplace_back(n.parameter->form);
        fill(states.back(), seed, ++key);
        n.parameter->states.push_back(states.back().view());
      }
    }
  }
  static PlacedNetwork place(const Options& o) {
    Network net({.c = 3, .h = 4, .w = 4});
    net.add<Conv2D>({.channels = 5, .kernel = 3, .pad = 1, .bias = true}, "conv1");
    net.add<BatchNorm>({}, "bn1");
    net.add<Linear>({.features = o.features}, "fc");
    std::shared_ptr<const Backend> backend = reference_backend();
    if (o.padded) backend = std::make_shared<PaddedReference>();
    return net.place({.batch = 2, .backend = backend, .dtype = o.dtype});
  }
  void fill(const View& to, std::uint64_t seed, std::uint64_t key) const {
    const Tensor plain(to.shape, to.dtype);
    for (std::int64_t i = 0; i < to.shape.size(); ++i) {
      const double v = Random(seed, key).normal(std::uint64_t(i));
      to.dtype == DType::f32 ? void(plain.as<float>()[i] = float(v))
                             : void(plain.as<double>()[i] = v);
    }
    net.placing().backend->copy(plain, to);
  }
  /// All buffers, padding included.
  std::string bytes(bool with_states = true) const {
    std::string all;
    const auto add = [&](const View& v) { all.append(v.as<char>(), v.bytes()); };
    for (const auto& n : net.parameters()) add(n.parameter->value);
    for (const Tensor& t : states)
      if (with_states) add(t);
    return all;
  }
  Parameter& parameter(const std::string& name) const {
    for (const auto& n : net.parameters())
      if (n.name == name) return *n.parameter;
    throw Error(name);
  }
};

const Progress progress{.step = 1234567890123,
                        .epoch = 3,
                        .batch = 17,
                        .loss = 17 * 2.3 / 7,
                        .top1 = 1.0 / 3,
                        .evaluation_due = true,
                        .seed = ~std::uint64_t(0),
                        .rate = 0.1 / 3,
                        .settings = {{"model", "small \"one\""}, {"optimizer", "adam"}},
                        .options = {{"schedule", "step every 3 by 0.1"}}};

}  // namespace

TEST_CASE("checkpoint: a round trip is bit-equal", "[checkpoint]") {
  const Folder folder;
  const std::string path = folder / "c.safetensors";
  for (const DType t : {DType::f32, DType::f64}) {
    const Model saved(1, {.dtype = t});
    Model loaded(2, {.dtype = t});
    REQUIRE(saved.bytes() != loaded.bytes());
    save_checkpoint(path, saved.net, progress);
    CHECK(load_checkpoint(path, loaded.net) == progress);
    CHECK(saved.bytes() == loaded.bytes());
    CHECK(read_progress(path) == progress);

    save_checkpoint(folder / "again", loaded.net, progress);
    CHECK(read(folder / "again") == read(path));
  }
  CHECK(folder.files() == 2);
}

TEST_CASE("checkpoint: names and shapes are torchvision's", "[checkpoint]") {
  const Folder folder;
  const Model model(1);
  save_checkpoint(folder / "c", model.net, progress);
  const SafetensorsFile file(folder / "c");
  const auto dims = [&](const char* name) {
    INFO(name);
    const StoredTensor* t = file.find(name);
    REQUIRE(t);
    return t->dims;
  };
  using D = std::vector<std::int64_t>;
  CHECK(dims("conv1.weight") == D{5, 3, 3, 3});
  CHECK(dims("conv1.bias") == D{5});
  CHECK(dims("bn1.running_mean") == D{5});
  CHECK(dims("bn1.running_var") == D{5});
  CHECK(dims("fc.weight") == D{4, 80});
  CHECK(dims("optimizer.1/fc.weight") == D{4, 80});
  CHECK_FALSE(file.find("optimizer.0/bn1.running_mean"));
  CHECK(file.tensors().size() == 8 + 2 * 6);
  CHECK(file.metadata().at("format") == "pt");
  CHECK(file.metadata().at("setting.optimizer") == "adam");
}

TEST_CASE("checkpoint: a layout is saved as plain and restored", "[checkpoint]") {
  const Folder folder;
  const Model plain(1), other(1, {.padded = true});
  REQUIRE_FALSE(other.parameter("fc.weight").value.layout.plain());
  save_checkpoint(folder / "plain", plain.net, progress);
  save_checkpoint(folder / "other", other.net, progress);
  CHECK(read(folder / "plain") == read(folder / "other"));
  Model loaded(2, {.padded = true});
  load_checkpoint(folder / "plain", loaded.net);
  CHECK(loaded.bytes() == other.bytes());  // the padding stayed zero
}

TEST_CASE("checkpoint: f32 and f64 convert into each other", "[checkpoint]") {
  const Folder folder;
  const Model narrow(1);
  Model wide(2, {.dtype = DType::f64}), back(3);
  save_checkpoint(folder / "f32", narrow.net, progress);
  load_checkpoint(folder / "f32", wide.net);
  CHECK(wide.parameter("fc.bias").value.as<double>()[1] ==
        double(narrow.parameter("fc.bias").value.as<float>()[1]));
  save_checkpoint(folder / "f64", wide.net, progress);
  load_checkpoint(folder / "f64", back.net);
  CHECK(back.bytes() == narrow.bytes());
}

TEST_CASE("checkpoint: large tensors travel in pieces", "[checkpoint]") {
  const Folder folder;
  Network net({.c = 1000});
  net.add<Linear>({.features = 3000}, "fc");
  const auto make = [&] {
    return net.place({.batch = 1, .backend = reference_backend(), .training = false});
  };
  PlacedNetwork saved = make(), loaded = make();
  saved.initialize(1);
  save_checkpoint(folder / "c", saved, {});
  load_parameters(folder / "c", loaded);
  const View &a = saved.parameters()[0].parameter->value,
             &b = loaded.parameters()[0].parameter->value;
  REQUIRE(a.shape.size() == 3'000'000);
  CHECK(std::memcmp(a.data, b.data, a.bytes()) == 0);
}

TEST_CASE("checkpoint: one for another model changes nothing", "[checkpoint]") {
  const Folder folder;
  const std::string path = folder / "c";
  const Model saved(1);
  save_checkpoint(path, saved.net, progress);
  const auto refusal = [&](Options o, bool parameters_only) {
    Model other(2, o);
    const std::string before = other.bytes();
    const std::string message = error_of([&] {
      parameters_only ? void(load_parameters(path, other.net))
                      : void(load_checkpoint(path, other.net));
    });
    CHECK(other.bytes() == before);
    return message;
  };
  CHECK(refusal({.features = 6}, true) ==
        path +
            ": checkpoint for another model: 2 of another shape, file/network (fc.weight "
            "4x80/6x80, fc.bias 4/6)");
  CHECK_THAT(refusal({.features = 6}, false), ContainsSubstring("6 of another shape"));
  CHECK_THAT(
      refusal({.states = 1}, false),
      ContainsSubstring("another model or optimizer: 6 unexpected (optimizer.1/conv1.weight, "
                        "optimizer.1/conv1.bias, optimizer.1/bn1.weight, ...)"));
  CHECK_THAT(refusal({.states = 3}, false),
             ContainsSubstring("6 missing (optimizer.2/conv1.weight"));

  const std::string bytes = read(path);
  for (const std::size_t n : {std::size_t(3), std::size_t(200), bytes.size() - 1}) {
    write(path, bytes.substr(0, n));
    CHECK_THAT(refusal({}, false), ContainsSubstring(path));
  }
}

TEST_CASE("checkpoint: parameters are loaded without the optimizer's states", "[checkpoint]") {
  const Folder folder;
  const Model saved(1);
  Model loaded(2), expected(2);
  save_checkpoint(folder / "c", saved.net, progress);
  CHECK(load_parameters(folder / "c", loaded.net).empty());
  CHECK(loaded.bytes(false) == saved.bytes(false));
  for (std::size_t i = 0; i < loaded.states.size(); ++i)
    CHECK(std::memcmp(loaded.states[i].as<char>(), expected.states[i].as<char>(),
                      loaded.states[i].bytes()) == 0);
}

TEST_CASE("checkpoint: a file of another program initializes a network", "[checkpoint]") {
  const Folder folder;
  const std::string path = folder / "c";
  const auto write_file = [&](std::vector<StoredTensor> tensors) {
    std::uint64_t bytes = 0;
    for (const StoredTensor& t : tensors)
      bytes += std::uint64_t(t.size()) * (t.dtype == "I64" ? 8 : 4);
    SafetensorsWriter writer(path, std::move(tensors));
    writer.write(std::string(bytes, '\0').data(), bytes);
    writer.commit();
  };
  std::vector<StoredTensor> tensors = {{"bn1.num_batches_tracked", "I64", {}},
                                       {"conv1.weight", "F32", {5, 3, 3, 3}},
                                       {"conv1.bias", "F32", {5}},
                                       {"bn1.weight", "F32", {5}},
                                       {"bn1.bias", "F32", {5}},
                                       {"bn1.running_mean", "F32", {5}},
                                       {"bn1.running_var", "F32", {5}},
                                       {"fc.weight", "F32", {4, 80}},
                                       {"fc.bias", "F32", {4}}};
  write_file(tensors);
  Model model(2);
  CHECK(load_parameters(path, model.net).empty());
  CHECK(model.parameter("fc.bias").value.as<float>()[0] == 0);
  CHECK_THAT(error_of([&] { load_checkpoint(path, model.net); }),
             ContainsSubstring("no training to resume"));

  // Another head: strict refuses, otherwise the head stays and the rest is loaded.
  tensors[7].dims = {9, 80}, tensors[8].name = "head.bias";
  write_file(tensors);
  Model other(3);
  const float head = other.parameter("fc.weight").value.as<float>()[7];
  CHECK_THAT(
      error_of([&] { load_parameters(path, other.net); }),
      ContainsSubstring("1 missing (fc.bias), 1 unexpected (head.bias), 1 of another shape"));
  CHECK(other.parameter("conv1.bias").value.as<float>()[0] != 0);
  const Unmatched u = load_parameters(path, other.net, false);
  CHECK(u.missing == std::vector<std::string>{"fc.bias"});
  CHECK(u.unexpected == std::vector<std::string>{"head.bias"});
  CHECK(u.reshaped == std::vector<std::string>{"fc.weight 9x80/4x80"});
  CHECK(other.parameter("conv1.bias").value.as<float>()[0] == 0);
  CHECK(other.parameter("fc.weight").value.as<float>()[7] == head);

  write_file({{"a", "F32", {1}}});
  CHECK_THAT(error_of([&] { load_parameters(path, other.net, false); }),
             ContainsSubstring("nothing in it fits"));
  tensors[8] = {"fc.bias", "U32", {4}}, tensors[7].dims = {4, 80};
  write_file(tensors);
  CHECK_THAT(error_of([&] { load_parameters(path, other.net); }),
             ContainsSubstring("fc.bias is U32"));
}

TEST_CASE("checkpoint: bad metadata are refused", "[checkpoint]") {
  const Folder folder;
  const auto refusal = [&](const std::string& key, const std::string& value) {
    std::map<std::string, std::string> m = {{"lamina.checkpoint", "1"},
                                            {"step", "1"},
                                            {"epoch", "2"},
                                            {"batch", "3"},
                                            {"seed", "4"},
                                            {"rate", "0.5"}};
    value.empty() ? void(m.erase(key)) : void(m[key] = value);
    SafetensorsWriter(folder / "c", {}, m).commit();
    return error_of([&] { read_progress(folder / "c"); });
  };
  CHECK(refusal("x", "y").empty());
  CHECK(std::isnan(read_progress(folder / "c").loss));  // of a time when none was written
  CHECK_THAT(refusal("lamina.checkpoint", ""), ContainsSubstring("no training to resume"));
  CHECK_THAT(refusal("lamina.checkpoint", "2"), ContainsSubstring("version 1"));
  CHECK_THAT(refusal("step", ""), ContainsSubstring("lack 'step'"));
  CHECK_THAT(refusal("step", "1x"), ContainsSubstring("no number as step"));
  CHECK_THAT(refusal("epoch", "-1"), ContainsSubstring("negative"));
  CHECK_THAT(refusal("seed", "99999999999999999999"), ContainsSubstring("seed"));
  CHECK_THAT(refusal("rate", "fast"), ContainsSubstring("rate"));
}

TEST_CASE("checkpoint: ranks share one file and one error", "[checkpoint]") {
  const Folder folder;
  const std::string path = folder / "c";
  run_ranks(3, [&](World& world) {
    const Model saved(1);
    Model loaded(std::uint64_t(10 + world.rank()));
    save_checkpoint(path, saved.net, progress, world.comm());
    const bool one_file = folder.files() == 1;
    const Progress p = load_checkpoint(path, loaded.net, world.comm());
    Model initial(std::uint64_t(20 + world.rank()));
    load_parameters(path, initial.net, true, world.comm());

    // Only rank 0 looks at files; yet all ranks must throw.
    const std::string bad = folder / "absent/c";
    const std::string save = error_of([&] { save_checkpoint(bad, saved.net, p, world.comm()); });
    const std::string load = error_of([&] { load_checkpoint(bad, loaded.net, world.comm()); });
    const auto good = [&] {
      return one_file && p == progress && loaded.bytes() == saved.bytes() &&
             initial.bytes(false) == saved.bytes(false) && save.starts_with(bad) &&
             load.starts_with(bad);
    };
    check(good(), "rank ", world.rank(), ": '", save, "' '", load, "'");
  });
}

TEST_CASE("checkpoint: what rank 0 cannot read all ranks throw", "[checkpoint]") {
  const Folder folder;
  const std::string path = folder / "c";
  save_checkpoint(path, Model(1).net, progress);
  std::vector<std::string> errors(3);
  run_ranks(3, [&](World& world) {
    Network net({.c = 3, .h = 4, .w = 4});
    net.add<Conv2D>({.channels = 5, .kernel = 3, .pad = 1, .bias = true}, "conv1");
    PlacedNetwork placed = net.place({.batch = 1, .backend = std::make_shared<Cutting>(path)});
    errors[std::size_t(world.rank())] =
        error_of([&] { load_parameters(path, placed, false, world.comm()); });
  });
  CHECK_THAT(errors[0], ContainsSubstring(path));
  CHECK(errors[1] == errors[0]);
  CHECK(errors[2] == errors[0]);
}
