function y = onnx_round(x)
% Round to the nearest integer, halves to the even one.
y = round(x);
halves = abs(x - fix(x)) == 0.5;
y(halves) = 2 * round(x(halves) / 2);
end
