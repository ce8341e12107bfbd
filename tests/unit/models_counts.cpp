// The models against the published exact counts: torchvision's parameters, multiply-adds of one
// image, gradient sizes and arithmetic intensities.
#include "catch.hpp"

#include <lamina/base/nearest.hpp>
#include <lamina/network/models.hpp>

#include <map>

using namespace lamina;

namespace {

struct Totals {
  double parameters = 0, macs = 0;
  double gradients = 0;  ///< bytes that a rank sends of them
};

bool multiplies(const Layer& layer) { return layer.type() == "Conv2D" || layer.type() == "Linear"; }

Totals totals(const Network& net) {
  Totals t;
  for (const auto& v : net.graph()) {
    if (!v.layer) continue;
    const Cost c = v.layer->cost(net.input_shapes(v, 1), {}, DType::f32);
    t.parameters += c.parameters;
    CHECK(v.layer->multiplies() == multiplies(*v.layer));
    if (multiplies(*v.layer)) t.macs += c.forward.flops / 2;
    for (const Message& m : c.messages)
      if (m.pass == Pass::weight_grad) t.gradients += m.bytes;
  }
  return t;
}

const Network::Vertex& vertex(const Network& net, std::string_view name) {
  for (const auto& v : net.graph())
    if (v.name == name) return v;
  throw Error(text("no layer ", name));
}

/// FLOP per byte of a layer for 32 samples in f32, printed as published: of the forward pass, and
/// of all three if there are weights.
std::string intensity(const Network& net, std::string_view name, const char* digits) {
  const auto& v = vertex(net, name);
  const Cost c = v.layer->cost(net.input_shapes(v, 32), {}, DType::f32);
  if (multiplies(*v.layer)) {
    CHECK(c.input_grad.intensity() == c.forward.intensity());
    CHECK(c.weight_grad.intensity() == c.forward.intensity());
  }
  return format(digits, c.forward.intensity());
}

/// Forward and backward of a batch in f32, by type of layer; "" is the sum. Vertices in front of
/// the first parameters want no gradient; where several layers read one, their gradients are
/// summed.
std::map<std::string, Work, std::less<>> step_work(const Network& net, std::int64_t batch) {
  std::map<std::string, Work, std::less<>> work;
  std::vector<bool> wants(net.graph().size());
  std::vector<int> readers(net.graph().size());
  for (std::size_t i = 0; i < net.graph().size(); ++i) {
    const auto& v = net.graph()[i];
    if (!v.layer) continue;
    Cost c = v.layer->cost(net.input_shapes(v, batch), {}, DType::f32);
    bool passes_on = false;
    for (const int input : v.inputs) {
      passes_on = passes_on || wants[std::size_t(input)];
      ++readers[std::size_t(input)];
    }
    wants[i] = passes_on || c.parameters > 0;
    if (!passes_on) c.input_grad = {};
    for (const Work& w : {c.forward, c.input_grad, c.weight_grad})
      work[std::string(v.layer->type())] += w, work[""] += w;
  }
  for (std::size_t i = 0; i < readers.size(); ++i) {
    if (!wants[i] || readers[i] < 2) continue;
    const double n = double(batch * net.graph()[i].shape.size()), k = readers[i];
    const Work sum{(k - 1) * n, 4 * (k + 1) * n};
    work["Add"] += sum, work[""] += sum;
  }
  return work;
}

}  // namespace

TEST_CASE("models have exactly the published numbers of parameters and multiply-adds") {
  struct Golden {
    const char* name;
    double parameters, macs;
  };
  const Golden golden =
      GENERATE(Golden{"lenet", 61706, 416520}, Golden{"alexnet", 61100840, 714188480},
               Golden{"vgg11", 132863336, 7609090048}, Golden{"vgg13", 133047848, 11308466176},
               Golden{"vgg16", 138357544, 15470264320}, Golden{"vgg19", 143667240, 19632062464},
               Golden{"resnet18", 11689512, 1814073344}, Golden{"resnet34", 21797672, 3663761408},
               Golden{"resnet50", 25557032, 4089184256}, Golden{"resnet101", 44549160, 7801405440},
               Golden{"resnet152", 60192808, 11513626624}, Golden{"resnet20", 269722, 40551040},
               Golden{"resnet56", 853018, 125485696});
  INFO(golden.name);
  const Totals t = totals(make_model(golden.name));
  CHECK(t.parameters == golden.parameters);
  CHECK(t.macs == golden.macs);
}

TEST_CASE("totals read as they are published") {
  const auto read = [](const char* name) {
    const Totals t = totals(make_model(name));
    return format("%.2f M, %.3f GMAC, %.1f MB", t.parameters / 1e6, t.macs / 1e9,
                  t.gradients / 1e6);
  };
  CHECK(read("alexnet") == "61.10 M, 0.714 GMAC, 244.4 MB");
  CHECK(read("vgg16") == "138.36 M, 15.470 GMAC, 553.4 MB");
  CHECK(read("resnet50") == "25.56 M, 4.089 GMAC, 102.2 MB");
  CHECK(read("resnet101") == "44.55 M, 7.801 GMAC, 178.2 MB");
  CHECK(read("resnet152") == "60.19 M, 11.514 GMAC, 240.8 MB");
}

TEST_CASE("the messages of a step carry every gradient once") {
  const Network net = make_model("resnet50");
  double bytes = 0;
  for (const auto& v : net.graph()) {
    if (!v.layer) continue;
    for (const Message& m :
         v.layer->cost(net.input_shapes(v, 64), {.batch = 4}, DType::f32).messages) {
      CHECK(Split{.batch = 4}.ways(m.axes) == 4);
      if (m.pass == Pass::weight_grad) bytes += m.bytes;
    }
  }
  CHECK(bytes == 4.0 * 25557032);
}

TEST_CASE("layers have the published intensities") {
  const Network vgg = make_model("vgg16"), res = make_model("resnet50");
  CHECK(intensity(vgg, "features.0", "%.1f") == "12.9");
  CHECK(intensity(vgg, "features.21", "%.0f") == "1055");  // conv4_3
  CHECK(intensity(vgg, "classifier.0", "%.1f") == "15.9");
  CHECK(intensity(vgg, "features.1", "%.3f") == "0.125");
  CHECK(intensity(res, "conv1", "%.0f") == "62");
  CHECK(intensity(res, "layer1.0.conv1", "%.0f") == "16");
  CHECK(intensity(res, "layer1.0.conv2", "%.0f") == "144");
  CHECK(intensity(res, "bn1", "%.2f") == "0.58");
  CHECK(intensity(res, "fc", "%.1f") == "15.3");
}

TEST_CASE("backward multiplies twice as much as forward, but for the first layer's input") {
  struct Golden {
    const char *name, *first;
  };
  const Golden golden = GENERATE(Golden{"alexnet", "features.0"}, Golden{"vgg16", "features.0"},
                                 Golden{"resnet50", "conv1"});
  INFO(golden.name);
  const Network net = make_model(golden.name);
  const auto& first = vertex(net, golden.first);
  const double macs =
      first.layer->cost(net.input_shapes(first, 1), {}, DType::f32).forward.flops / 2;
  const auto work = step_work(net, 1);
  CHECK(work.at("Conv2D").flops + work.at("Linear").flops == 2 * (3 * totals(net).macs - macs));
}

TEST_CASE("in ResNet-50 batch norm, ReLU and the sums of branches are 71 % of the bytes") {
  const auto work = step_work(make_model("resnet50"), 32);
  const double bytes = work.at("BatchNorm").bytes + work.at("ReLU").bytes + work.at("Add").bytes;
  CHECK(format("%.0f", 100 * bytes / work.at("").bytes) == "71");
}

TEST_CASE("layers stand where torchvision has them") {
  const auto says = [](const char* model, const char* layer, const char* type,
                       const char* options) {
    const Network net = make_model(model);
    const auto& v = vertex(net, layer);
    INFO(model << ' ' << layer);
    CHECK(v.layer->type() == type);
    CHECK(v.layer->describe() == options);
  };
  says("alexnet", "features.0", "Conv2D", "64 11x11 s4 p2");
  says("alexnet", "features.10", "Conv2D", "256 3x3 p1");
  says("alexnet", "features.12", "MaxPool2D", "3x3 s2");
  says("alexnet", "classifier.6", "Linear", "1000");
  says("vgg11", "features.18", "Conv2D", "512 3x3 p1");
  says("vgg16", "features.28", "Conv2D", "512 3x3 p1");
  says("vgg16", "features.30", "MaxPool2D", "2x2 s2");
  says("vgg19", "features.34", "Conv2D", "512 3x3 p1");
  says("vgg16", "classifier.3", "Linear", "4096");
  says("vgg16", "classifier.5", "Dropout", "0.5");
  says("resnet18", "layer4.1.conv2", "Conv2D", "512 3x3 p1");
  says("resnet50", "layer2.0.conv1", "Conv2D", "128 1x1");        // v1.5: the stride is not here
  says("resnet50", "layer2.0.conv2", "Conv2D", "128 3x3 s2 p1");  // but here
  says("resnet50", "layer1.0.downsample.0", "Conv2D", "256 1x1");
  says("resnet50", "layer4.0.downsample.0", "Conv2D", "2048 1x1 s2");
  says("resnet50", "layer3.5.bn3", "BatchNorm", "");
  says("resnet101", "layer3.22.conv3", "Conv2D", "1024 1x1");
  says("resnet152", "layer2.7.conv2", "Conv2D", "128 3x3 p1");
  says("resnet152", "layer3.35.conv2", "Conv2D", "256 3x3 p1");
  CHECK_THROWS(vertex(make_model("resnet18"), "layer1.0.downsample.0"));  // none where shapes agree
}

TEST_CASE("every model ends in the loss") {
  for (const auto name : model_names()) {
    const Network net = make_model(name);
    CHECK(net.graph().back().name == "loss");
    CHECK(net.graph().back().layer->type() == "SoftmaxCrossEntropy");
  }
}

TEST_CASE("options reach the layers") {
  const Network net = make_model("resnet18", {.classes = 7,
                                              .input = {.c = 1, .h = 64, .w = 48},
                                              .label_smoothing = 0.1,
                                              .global_norm = true});
  CHECK(net.sample() == Shape{1, 1, 64, 48});
  CHECK(vertex(net, "fc").shape.c == 7);
  CHECK(vertex(net, "layer4.1.add").shape == Shape{1, 512, 2, 2});
  CHECK(vertex(net, "loss").layer->describe() == "smoothing 0.1");
  CHECK(vertex(net, "bn1").layer->describe() == "global statistics");
  const Network alexnet = make_model("alexnet", {.dropout = 0.2});
  CHECK(vertex(alexnet, "classifier.3").layer->describe() == "0.2");
}

TEST_CASE("features of small images reach the classifier as they are") {
  const auto first_linear = [](std::string_view model, std::int64_t h, std::int64_t w = 0) {
    const Network net = make_model(model, {.input = {.c = 3, .h = h, .w = w > 0 ? w : h}});
    for (const auto& v : net.graph())
      if (v.layer && v.layer->type() == "Linear") return net.input_shapes(v, 1)[0].size();
    return std::int64_t(0);
  };
  CHECK(first_linear("alexnet", 224) == 256 * 6 * 6);
  CHECK(first_linear("alexnet", 96) == 256 * 2 * 2);
  CHECK(first_linear("vgg11", 32) == 512);
  CHECK(first_linear("vgg11", 64) == 512 * 2 * 2);
  CHECK(first_linear("vgg11", 64, 128) == 512 * 2 * 4);
  CHECK(first_linear("vgg11", 160, 128) == 512 * 5 * 4);
  CHECK(first_linear("vgg11", 448, 160) == 512 * 7 * 5);
}

TEST_CASE("a model that is not known, or an input that does not fit, is refused") {
  const auto refusal = [](const char* name, ModelOptions o = {}) -> std::string {
    try {
      make_model(name, o);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  CHECK(refusal("resnet-50") ==
        "model 'resnet-50' is not known (did you mean resnet50?): expected one of lenet, alexnet, "
        "vgg11, vgg13, vgg16, vgg19, resnet18, resnet34, resnet50, resnet101, resnet152, resnet20, "
        "resnet56");
  CHECK_THAT(refusal("transformer"), ContainsSubstring("not known: expected one of"));
  CHECK(refusal("vgg16", {.input = {.c = 3, .h = 256, .w = 256}}) ==
        "avgpool (AvgPool2D): to average to 7x7 the input must be a multiple of that in height and "
        "width, got 8x8");
  CHECK_THAT(refusal("alexnet", {.input = {.c = 3, .h = 32, .w = 32}}),
             ContainsSubstring("does not fit into the padded input"));
  CHECK_THAT(refusal("lenet", {.classes = -1}), ContainsSubstring("got -1"));
}

TEST_CASE("nearest is the closest name, if it is close") {
  const std::vector<std::string_view> names{"conv", "linear", "relu"};
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(edit_distance("", "abc") == 3);
  CHECK(nearest("konv", names) == "conv");
  CHECK(nearest("liner", names) == "linear");
  CHECK(nearest("completely else", names).empty());
  CHECK(nearest("conv", std::vector<std::string_view>{}).empty());
}
