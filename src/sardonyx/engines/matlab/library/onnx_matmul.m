function y = onnx_matmul(a, arank, b, brank)
% Products of matrices, one for each position of the leading axes of ONNX.
if arank <= 2 && brank <= 2 && arank > 1 && brank > 1
    y = b * a;
    return
end
sa = onnx_size(a, arank);
sb = onnx_size(b, brank);
if arank == 1
    sa = [sa, 1];
end
if brank == 1
    sb = [1, sb];
end
n = max(numel(sa), numel(sb));
sa(numel(sa) + 1:n) = 1;
sb(numel(sb) + 1:n) = 1;
pages = max(sa(3:n), sb(3:n));
pages(sa(3:n) == 0 | sb(3:n) == 0) = 0;
a = reshape(onnx_repeat(onnx_sized(a, sa), [sa(1:2), pages]), sa(1), sa(2), []);
b = reshape(onnx_repeat(onnx_sized(b, sb), [sb(1:2), pages]), sb(1), sb(2), []);
y = zeros(sb(1), sa(2), prod(pages), class(a));
for page = 1:prod(pages)
    y(:, :, page) = b(:, :, page) * a(:, :, page);
end
sizes = [sb(1), sa(2), pages];
gone = [];
if brank == 1
    gone = 1;
end
if arank == 1
    gone = [gone, 2];
end
sizes(gone) = [];
y = onnx_sized(y, sizes);
end
