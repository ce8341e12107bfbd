// Verdicts on kernels, as they are kept between runs.
#include "catch.hpp"
#include "support/cache_folder.hpp"

#include <lamina/kernels/choice.hpp>

#include <unistd.h>

#include <barrier>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

using namespace lamina;

namespace {

struct Folder : lamina::test::CacheFolder {
  std::filesystem::path file() const { return std::filesystem::directory_iterator(path)->path(); }
};

}  // namespace

TEST_CASE("verdicts are kept in a file for later runs") {
  const Folder folder;
  const auto first = kept_verdicts();
  CHECK(!first->find("dx by this"));
  first->keep("dx by this", 0.5), first->keep("y by that", 1e-7);
  CHECK(first->find("dx by this") == 0.5);
  const auto second = kept_verdicts();
  CHECK(second->find("dx by this") == 0.5);
  CHECK(second->find("y by that") == 1e-7);
  CHECK(!second->find("dw by this"));
  const double third = 1.0 / 3;  // all digits: who reads it must choose as who measured it
  second->keep("dw by this", third);
  CHECK(kept_verdicts()->find("dw by this") == third);
}

TEST_CASE("the verdict that was kept first counts for all who found out at once") {
  const Folder folder;
  const auto one = kept_verdicts(), other = kept_verdicts();
  CHECK(!one->find("y"));
  CHECK(!other->find("y"));
  CHECK(other->keep("y", 0.5) == 0.5);
  CHECK(one->keep("y", 0.25) == 0.5);
  CHECK(other->keep("y", 0.75) == 0.5);
  for (const auto& verdicts : {one, other, kept_verdicts()}) CHECK(verdicts->find("y") == 0.5);
  constexpr int askers = 4, things = 50;
  std::vector<std::vector<double>> said(askers, std::vector<double>(things));
  std::barrier together(askers);
  std::vector<std::jthread> threads;
  for (int asker = 0; asker < askers; ++asker)
    threads.emplace_back([&, asker] {
      const auto verdicts = kept_verdicts();
      for (int i = 0; i < things; ++i) {
        together.arrive_and_wait();
        said[std::size_t(asker)][std::size_t(i)] = verdicts->keep(text("thing ", i), asker);
      }
    });
  threads.clear();
  for (const auto& numbers : said) CHECK(numbers == said[0]);
  Verdicts in_memory;
  CHECK(in_memory.keep("y", 2) == 2);
  CHECK(in_memory.keep("y", 3) == 2);
}

TEST_CASE("lines of verdicts that make no sense are passed over") {
  const Folder folder;
  kept_verdicts()->keep("good", 0.25);
  std::ofstream(folder.file(), std::ios::app)
      << "nonsense\n-1\tnegative\nnan\tnone\n\t\n0.5 x\tno\n1.5\tcut o";
  kept_verdicts()->keep("after", 0.75);
  const auto read = kept_verdicts();
  CHECK(read->find("good") == 0.25);
  CHECK(read->find("after") == 0.75);
  for (const char* what : {"negative", "none", "", "no", "cut off"}) CHECK(!read->find(what));
}

TEST_CASE("a verdict that is being written counts when it is whole") {
  const Folder folder;
  const auto verdicts = kept_verdicts();
  verdicts->keep("first", 1);
  const auto append = [&](const char* text) {
    std::ofstream(folder.file(), std::ios::app) << text;
  };
  append("0.5\tpart");
  CHECK(!verdicts->find("part"));
  append("ner\n");
  CHECK(!verdicts->find("part"));
  CHECK(verdicts->find("partner") == 0.5);
  CHECK(verdicts->find("first") == 1.0);
}

TEST_CASE("verdicts stay in memory where they cannot be kept") {
  const Folder folder;
  const std::string blocked = folder.path + "/file/folder";
  std::filesystem::create_directories(folder.path);
  std::ofstream(folder.path + "/file") << "not a folder";
  for (const char* cache : {"0", blocked.c_str()}) {
    setenv("LAMINA_CACHE", cache, 1);
    const auto verdicts = kept_verdicts();
    CHECK(!verdicts->find("x"));
    verdicts->keep("x", 2);
    CHECK(verdicts->find("x") == 2.0);
    CHECK(!kept_verdicts()->find("x"));
  }
}
