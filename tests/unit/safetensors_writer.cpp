// The safetensors writer: its bytes, and what is left when it fails.
#include "catch.hpp"
#include "unit/checkpoint_files.hpp"

#include <lamina/train/json_log.hpp>
#include <lamina/train/safetensors.hpp>

#include <nlohmann/json.hpp>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cmath>
#include <csignal>
#include <cstring>

using namespace lamina;
using namespace checkpoint_files;

namespace {

/// While it lives, no file of this process can grow beyond `bytes`: a full disk, without a disk.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  FullDisk(const FullDisk&) = delete;
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  void (*handler_)(int);
  rlimit before_ = {};
};

void save(const std::string& path, float value, std::int64_t size = 1000) {
  const std::vector<float> data(std::size_t(size), value);
  SafetensorsWriter writer(path, {{"t", "F32", {size}}}, {{"k", "v"}});
  writer.write(data.data(), 4 * data.size());
  writer.commit();
}

float first_value(const std::string& path) {
  const SafetensorsFile file(path);
  float value = 0;
  file.read(*file.find("t"), 0, 1, DType::f32, &value);
  return value;
}

}  // namespace

TEST_CASE("safetensors: the bytes are those of the format", "[safetensors]") {
  const Folder folder;
  const std::string path = folder / "f.safetensors";
  const double wide[] = {1, 2};
  const float narrow[] = {3, 4, 5};
  {
    SafetensorsWriter writer(path, {{"w", "F64", {2, 1}}, {"n", "F32", {3}}, {"e", "F32", {0}}},
                             {{"k", "v"}});
    writer.write(wide, 8);
    writer.write(wide + 1, 8);
    writer.write(narrow, 12);
    writer.commit();
  }
  CHECK(folder.files() == 1);
  const std::string bytes = read(path);
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  CHECK(length % 8 == 0);
  const std::string header =
      R"({"__metadata__":{"k":"v"},"w":{"dtype":"F64","shape":[2,1],"data_offsets":[0,16]},)"
      R"("n":{"dtype":"F32","shape":[3],"data_offsets":[16,28]},)"
      R"("e":{"dtype":"F32","shape":[0],"data_offsets":[28,28]}})";
  CHECK(bytes.substr(8, header.size()) == header);
  CHECK(bytes.substr(8 + header.size(), length - header.size()) ==
        std::string(length - header.size(), ' '));
  REQUIRE(bytes.size() == 8 + length + 28);
  CHECK(std::memcmp(bytes.data() + 8 + length, wide, 16) == 0);
  CHECK(std::memcmp(bytes.data() + 8 + length + 16, narrow, 12) == 0);
  const SafetensorsFile file(path);
  CHECK(file.tensors().size() == 3);
}

TEST_CASE("safetensors: a full disk leaves the previous file", "[safetensors]") {
  const Folder folder;
  const std::string path = folder / "f.safetensors";
  save(path, 1);
  const std::string before = read(path);
  for (const rlim_t limit : {0, 50, 200, 4000}) {  // in the length, the header, the data
    std::string message;
    {
      const FullDisk full(limit);
      message = error_of([&] { save(path, 2); });
    }
    INFO(limit);
    CHECK_THAT(message, ContainsSubstring(path + ": not saved: "));
    CHECK_THAT(message, ContainsSubstring("cannot take the room: File too large"));
    CHECK_THAT(message, ContainsSubstring(text("(", before.size(), " bytes are needed)")));
    CHECK(folder.files() == 1);
    CHECK(read(path) == before);
  }
  {  // it fills up while the data are written
    SafetensorsWriter writer(path, {{"t", "F32", {1000}}});
    const FullDisk full(200);
    const std::vector<float> values(1000);
    CHECK_THAT(error_of([&] { writer.write(values.data(), 4000); }),
               ContainsSubstring(path + ": not saved: ") &&
                   ContainsSubstring("cannot write: File too large"));
  }
  CHECK(folder.files() == 1);
  CHECK(read(path) == before);
  save(path, 3);
  CHECK(first_value(path) == 3);
}

TEST_CASE("safetensors: a writer that is not committed leaves nothing", "[safetensors]") {
  const Folder folder;
  const std::string path = folder / "f.safetensors";
  const float value = 1;
  {
    SafetensorsWriter writer(path, {{"t", "F32", {2}}});
    CHECK(folder.files() == 1);
    writer.write(&value, 4);
    CHECK_THAT(error_of([&] { writer.commit(); }), ContainsSubstring("got 4 of 8 bytes"));
    CHECK_FALSE(std::filesystem::exists(path));
    writer.write(&value, 4);
    CHECK_THROWS_AS(writer.write(&value, 4), Error);
  }
  CHECK(folder.files() == 0);
}

TEST_CASE("safetensors: places where nothing can be saved", "[safetensors]") {
  const Folder folder;
  CHECK_THAT(error_of([&] { save(folder / "absent/f.safetensors", 1); }),
             ContainsSubstring("cannot create: No such file or directory"));
  std::filesystem::create_directory(folder / "d");
  CHECK_THAT(error_of([&] { save(folder / "d", 1); }), ContainsSubstring("regular file"));
  CHECK_THAT(error_of([] { save("/dev/null", 1); }), ContainsSubstring("regular file"));
  CHECK(std::filesystem::is_character_file("/dev/null"));

  // Root may write anywhere, so become somebody else for a moment.
  ::chmod(folder.path.c_str(), 0555);
  const bool root = ::geteuid() == 0;
  if (root) REQUIRE(::seteuid(65534) == 0);
  const std::string message = error_of([&] { save(folder / "f.safetensors", 1); });
  if (root) REQUIRE(::seteuid(0) == 0);
  ::chmod(folder.path.c_str(), 0755);
  CHECK_THAT(message, ContainsSubstring("cannot create: Permission denied"));
  CHECK(folder.files() == 1);  // the folder "d"
}

TEST_CASE("safetensors: what cannot be written is refused first", "[safetensors]") {
  const Folder folder;
  const auto refusal = [&](std::vector<StoredTensor> tensors) {
    return error_of([&] { SafetensorsWriter(folder / "f", std::move(tensors)); });
  };
  CHECK_THAT(refusal({{"a", "F32", {1}}, {"a", "F32", {1}}}), ContainsSubstring("named 'a'"));
  CHECK_THAT(refusal({{"__metadata__", "F32", {1}}}), ContainsSubstring("named"));
  CHECK_THAT(refusal({{"a", "F31", {1}}}), ContainsSubstring("F31"));
  CHECK_THAT(refusal({{"a", "F32", {-1}}}), ContainsSubstring("extent -1"));
  CHECK_THAT(refusal({{"a", "F32", {INT64_MAX, INT64_MAX}}}), ContainsSubstring("not possible"));
  CHECK_THAT(refusal({{"a", "F32", {1}}, {"b", "F64", {1}}}), ContainsSubstring("aligned"));
  CHECK_THAT(refusal({{"\xff", "F32", {1}}}), ContainsSubstring("UTF-8"));
  CHECK(folder.files() == 0);
}

TEST_CASE("JsonLog writes one object per line", "[log]") {
  const Folder folder;
  const std::string path = folder / "log.jsonl";
  {
    JsonLog log(path);
    log.write({{"step", 3}, {"loss", 0.1}, {"kind", "a \"b\"\n"}, {"last", true}});
    CHECK(read(path) ==
          "{\"step\": 3, \"loss\": 0.1, \"kind\": \"a \\\"b\\\"\\n\", \"last\": true}\n");
    const std::vector<int> workers{3, 1};
    log.write({{"loss", std::nan("")},
               {"bytes", std::uint64_t(1) << 63},
               {"bad", "\xff"},
               {"workers", workers}});
  }
  JsonLog(path).write({});  // appends
  std::ifstream file(path);
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  REQUIRE(lines.size() == 3);
  CHECK(lines[0]["loss"] == 0.1);
  CHECK(lines[1]["loss"].is_null());
  CHECK(lines[1]["bytes"] == std::uint64_t(1) << 63);
  CHECK(lines[1]["workers"] == std::vector{3, 1});
  JsonLog(path, false).write({});
  CHECK(read(path) == "{}\n");
}

TEST_CASE("JsonLog says why it cannot write", "[log]") {
  const Folder folder;
  CHECK_THAT(error_of([&] { JsonLog(folder / "absent/log"); }),
             ContainsSubstring("absent/log: cannot create: No such file"));
  CHECK_THAT(error_of([&] {
               JsonLog("/dev/full").write({{"step", 1}});
             }),
             ContainsSubstring("/dev/full: cannot write: No space left on device"));
}

TEST_CASE("a log that a training goes on with has each step once", "[log]") {
  const Folder folder;
  const std::string path = folder / "log";
  const auto line = [](int step, const char* more = "") {
    return text("{\"step\": ", step, more, "}\n");
  };
  const std::string three = line(1) + line(2) + line(2, ", \"top1\": 0.5") + "{\"kind\": 1}\n";
  const auto resumed = [&](const std::string& content, std::int64_t step, bool due = false) {
    write(path, content);
    JsonLog log(path);
    log.resume_at(step, due);
    const std::string kept = read(path);
    log.write({{"step", step + 1}});
    CHECK(read(path) == kept + line(int(step) + 1));
    return kept;
  };
  CHECK(resumed("", 7) == "");
  CHECK(resumed(three, 2) == three);
  CHECK(resumed(three + line(3) + line(4), 2) == three);
  CHECK(resumed(three + line(3) + line(4), 2, true) == line(1) + line(2));
  CHECK(resumed(three + line(3), 3, true) == three + line(3));
  // A log that begins with the evaluation which a resumed run began with.
  const std::string evaluation = line(2, ", \"validation_loss\": 0.5");
  CHECK(resumed(evaluation + line(3), 2, true) == "");
  CHECK(resumed(line(1) + line(2) + evaluation, 2) == line(1) + line(2) + evaluation);
  const std::string resize = line(2, ", \"ranks_before\": 1, \"ranks\": 4");
  CHECK(resumed(three + resize, 2) == three);
  CHECK(resumed(three + resize + line(3), 3) == three + resize + line(3));
  CHECK(resumed(three + line(3) + line(4), 0) == "");
  CHECK(resumed(three + "{\"step\": 3, \"lo", 2) == three);     // killed while it wrote
  CHECK(resumed(three + std::string(5000, '\0'), 2) == three);  // the machine went down
  CHECK(resumed(three + "{\"step\": 3, \"lo\n", 2) == three);
  std::string large;  // more than is read at a time
  for (int i = 1; i <= 100000; ++i) large += line(i);
  const std::string kept = resumed(large, 90000);
  CHECK(kept == large.substr(0, large.find(line(90001))));

  const auto refuses = [&](const std::string& content, int at) {
    write(path, content);
    CHECK_THAT(error_of([&] { JsonLog(path).resume_at(1); }),
               ContainsSubstring(text("log: line ", at, " is no JSON object: expected a log")));
    CHECK(read(path) == content);
  };
  refuses("my notes\n" + line(1), 1);
  refuses("my notes", 1);
  refuses(line(1) + "my notes\n", 2);
  refuses(line(1) + "{\"step\": 1, \"lo\n" + line(1), 2);
  JsonLog("/dev/null").resume_at(3);
}

TEST_CASE("two do not write one log", "[log]") {
  const Folder folder;
  const std::string path = folder / "log";
  {
    JsonLog log(path);
    log.write({{"step", 1}});
    CHECK(log.locked());
    CHECK_THAT(error_of([&] { JsonLog(path, false); }),
               ContainsSubstring("log: another job is writing it"));
    CHECK(read(path) == "{\"step\": 1}\n");
  }
  CHECK(error_of([&] { JsonLog{path}; }).empty());
  const JsonLog one("/dev/null"), other("/dev/null");  // which anybody may write
}

TEST_CASE("what dead processes left behind goes with the next file of that name") {
  const Folder folder;
  const std::string path = folder / "run";
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  pid_t dead = fork();
  if (dead == 0) _exit(0);
  waitpid(dead, nullptr, 0);
  const std::string here = text(".", host), pid = text(dead);
  const std::vector<std::string> stay = {
      "run.tmp." + pid + ".other" + here,   // of another host
      "run.tmp." + text(getppid()) + here,  // of a process that lives
      "run.tmp." + pid + "x",
      "run.tmp.x",
      "run.tmp.",
      "runs.tmp." + pid + here,
      "run.tmp"};
  const std::vector<std::string> go = {"run.tmp." + pid + here, "run.tmp." + pid};
  const std::string locked = "run.tmp." + text(dead) + here;
  for (const auto& names : {stay, go})
    for (const std::string& name : names) write(folder / name, "half");
  {
    File held(folder / locked, File::Mode::append);  // by a process that cannot be seen from here
    CHECK(held.lock() == File::Lock::mine);
    write_file(path, "new");
    CHECK(std::filesystem::exists(folder / locked));
    CHECK(!std::filesystem::exists(folder / go[1]));
  }
  write_file(path, "newer");
  CHECK(read(path) == "newer");
  for (const std::string& name : stay) CHECK(std::filesystem::exists(folder / name));
  CHECK(folder.files() == stay.size() + 1);
}

TEST_CASE("a file stays as it is where a dead process left our temporary name as one of its own") {
  const Folder folder;
  const std::string path = folder / "run";
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  write_file(path, "old");
  std::filesystem::create_hard_link(path, folder / text("run.tmp.", getpid(), ".", host));
  { const NewFile given_up(path, "cannot write"); }
  CHECK(read(path) == "old");
  CHECK(folder.files() == 1);
}
