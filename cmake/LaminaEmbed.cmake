# lamina_embed(output.cpp page_css path/page.css ...): writes a source file that defines each text
# file as `extern const char* const <name>` in lamina::detail. CMake runs again when one of them
# changes; the source file is touched only where its content does.
function(lamina_embed output)
  set(_text "// Made by CMake from the files named below; edits are lost.\n")
  string(APPEND _text "namespace lamina::detail {\n")
  while(ARGN)
    list(POP_FRONT ARGN name path)
    cmake_path(ABSOLUTE_PATH path BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
    cmake_path(GET path FILENAME file)
    file(READ ${path} content)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
    string(APPEND _text "// ${file}\nextern const char* const ${name};\n"
                        "const char* const ${name} = R\"embedded(${content})embedded\";\n")
  endwhile()
  string(APPEND _text "}  // namespace lamina::detail\n")
  file(CONFIGURE OUTPUT ${output} CONTENT "@_text@" @ONLY)
endfunction()
