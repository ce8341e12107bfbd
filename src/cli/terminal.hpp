// The terminal that a person looks at, if there is one.
#pragma once

#include <string>
#include <string_view>

namespace lamina::cli {

/// Columns of the terminal that shows stdout; 0 where stdout ends in a file or a pipe. Open MPI
/// gives its ranks a terminal of their own whatever becomes of its output: there its stdout counts.
int terminal_columns();

/// How wide the lines of a table may be: the terminal's, within reason; 120 in a file or a pipe.
int table_width();

/// How wide the lines that begin with '#' may be: the terminal's; 80 in a file or a pipe.
int remark_width();

/// What a program says beside its results: "# words", with as many further lines "#   more words"
/// as the width asks for, and an end of line.
std::string remark(std::string_view words);

/// A word of a command line, as it is to be typed.
std::string for_shell(const std::string& word);

}  // namespace lamina::cli
